"""Exchanges of samples between the packs of one iteration, the heaviest and a lighter one at a time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.moves import (
    HEAVY_COUNT,
    HEAVY_FIRST,
    HEAVY_OTHER,
    LIGHT_BUT,
    LIGHT_COUNT,
    LIGHT_FIRST,
    LIGHT_OTHER_1,
    LIGHT_OTHER_2,
    MOST_PLACES,
    NONE,
    NUM_FIELDS,
    NUM_PLACE_FIELDS,
    ONE,
    ZERO,
    find_move,
)


def exchange_until(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    capacity: int,
    limit: float,
    most_tries: int,
    most_partners: int,
    scratch: NDArray[np.int64],
) -> None:
    """Lower the greatest work of some packs by exchanges, until it is within the limit or none helps.

    Args:
        rows: int64[2, packs, width], lengths (falling) and piece numbers of each pack; rewritten.
        count: int64[packs], samples of each; more than `width` are never put into one.
        tokens, work: int64[packs], of each.
        capacity: most tokens of a pack.
        limit: work that need not be lowered.
        most_tries: pairs of packs that an exchange is looked for in; the last round may exceed it.
        most_partners: lighter packs that are tried before the heaviest one is given up.
        scratch: int64[6, width + 1], of any content.
    """
    move = np.zeros(NUM_FIELDS, dtype=np.int64)
    tried_in = np.full(len(count), -1, dtype=np.int64)
    partners = min(most_partners, len(count) - 1)
    places = np.empty((MOST_PLACES, NUM_PLACE_FIELDS), dtype=np.int64)
    _exchange(rows, count, tokens, work, capacity, limit, most_tries, partners, scratch, move, tried_in, places)


@njit(cache=True)
def _exchange(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    capacity: int,
    limit: float,
    most_tries: int,
    partners: int,
    scratch: NDArray[np.int64],
    move: NDArray[np.int64],
    tried_in: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """`tried_in` (int64[packs], -1 at first): the round in which a pack was looked at last."""
    number, tries = ZERO, ZERO
    while tries < most_tries:
        heavy = ZERO
        for p in range(1, len(work)):
            if work[p] > work[heavy]:
                heavy = p
        if work[heavy] <= limit:
            return
        tried_in[heavy] = number
        left, gap = ZERO, ZERO
        for _ in range(partners):
            light = NONE
            for p in range(len(count)):
                if tried_in[p] < number and (light < 0 or work[p] < work[light]):
                    light = p
            tried_in[light] = number
            tries += 1
            gap = work[heavy] - work[light]
            a, b = rows[0, heavy, : count[heavy]], rows[0, light, : count[light]]
            left = find_move(a, b, gap, capacity - tokens[heavy], capacity - tokens[light], move, scratch, places)
            grown = move[LIGHT_COUNT] - move[HEAVY_COUNT]
            for field in (LIGHT_OTHER_1, LIGHT_OTHER_2):
                grown += move[field] >= 0
            for field in (LIGHT_BUT, HEAVY_OTHER):
                grown -= move[field] >= 0
            if left < gap and max(count[heavy] + grown, count[light] - grown) <= rows.shape[2]:
                _apply(rows, count, heavy, light, move, scratch)
                for p in (heavy, light):
                    tokens[p], work[p] = 0, 0
                    for q in range(count[p]):
                        tokens[p] += rows[0, p, q]
                        work[p] += rows[0, p, q] * rows[0, p, q]
                break
            left = gap
        if left == gap:
            return
        number += ONE


@njit(cache=True)
def _apply(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    heavy: int,
    light: int,
    move: NDArray[np.int64],
    scratch: NDArray[np.int64],
) -> None:
    """Make the exchange: take the samples of both packs out, then merge them into the other's row."""
    first, stop = move[HEAVY_FIRST], move[HEAVY_FIRST] + move[HEAVY_COUNT]
    given = _take(rows, count, heavy, first, stop, NONE, move[HEAVY_OTHER], NONE, scratch[:2])
    first, stop, but = move[LIGHT_FIRST], move[LIGHT_FIRST] + move[LIGHT_COUNT], move[LIGHT_BUT]
    others = move[LIGHT_OTHER_1], move[LIGHT_OTHER_2]
    received = _take(rows, count, light, first, stop, but, others[0], others[1], scratch[2:4])
    _put(rows, count, light, scratch[:2], given, scratch[4:])
    _put(rows, count, heavy, scratch[2:4], received, scratch[4:])


@njit(cache=True)
def _take(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    p: int,
    first: int,
    stop: int,
    but: int,
    other_1: int,
    other_2: int,
    taken: NDArray[np.int64],
) -> int:
    """Move these samples from row p to `taken`, in the row's order; gives their number."""
    kept, num_taken = 0, 0
    for q in range(count[p]):
        length, piece = rows[0, p, q], rows[1, p, q]
        if (first <= q < stop and q != but) or q in (other_1, other_2):
            taken[0, num_taken], taken[1, num_taken] = length, piece
            num_taken += 1
        else:
            rows[0, p, kept], rows[1, p, kept] = length, piece
            kept += 1
    count[p] = kept
    return num_taken


@njit(cache=True)
def _put(
    rows: NDArray[np.int64],
    count: NDArray[np.int64],
    p: int,
    taken: NDArray[np.int64],
    num_taken: int,
    scratch: NDArray[np.int64],
) -> None:
    """Merge samples into row p; of equal ones, those of the row come first."""
    size = count[p]
    for q in range(size):
        scratch[0, q], scratch[1, q] = rows[0, p, q], rows[1, p, q]
    a, b = 0, 0
    for q in range(size + num_taken):
        if b == num_taken or (a < size and scratch[0, a] >= taken[0, b]):
            rows[0, p, q], rows[1, p, q] = scratch[0, a], scratch[1, a]
            a += 1
        else:
            rows[0, p, q], rows[1, p, q] = taken[0, b], taken[1, b]
            b += 1
    count[p] = size + num_taken
