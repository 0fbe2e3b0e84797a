"""Exchanges of samples within an iteration, each between its heaviest pack and a lighter one."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.kernels.balance.moves import find_move
from packer_cli.plan.kernels.balance.places import (
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
    ONE,
    ZERO,
)


@njit(cache=True)
def exchange_until(
    lengths: NDArray[np.int64],
    pieces: NDArray[np.int64],
    count: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    capacity: int,
    linear: int,
    limit: float,
    most_tries: int,
    most_partners: int,
) -> None:
    """Lower the greatest work of these packs by exchanges, until it is within the limit or no exchange helps.

    Args:
        lengths, pieces: int64[packs, width], the samples of each pack by decreasing length; rewritten.
        count: int64[packs], samples of each pack; stays within `width`.
        tokens, work: int64[packs], totals of each pack.
        capacity: most tokens of a pack.
        linear: tokens, see `Cost.linear_tokens`.
        limit: greatest work at which to stop.
        most_tries: pairs of packs to search for an exchange; the last round may exceed it.
        most_partners: lighter packs to try before giving up on the heaviest one.
    """
    width = lengths.size // len(work)
    lengths, pieces = lengths.ravel(), pieces.ravel()
    move, places = np.empty(NUM_FIELDS, dtype=np.int64), np.empty(MOST_PLACES, dtype=np.int64)
    sums = np.empty(max(4 * (width + 1), 6 * width), dtype=np.int64)
    tried_in = np.empty(len(work), dtype=np.int64)  # The round that last tried a pack.
    tried_in[:] = NONE
    number, tries = ZERO, ZERO
    while tries < most_tries:
        heavy = ZERO
        for p in range(len(work)):
            if work[p] > work[heavy]:
                heavy = p
        if work[heavy] <= limit:
            return
        tried_in[heavy] = number
        left, gap = ZERO, ZERO
        for _ in range(min(most_partners, len(work) - 1)):
            light = NONE
            for p in range(len(work)):
                if tried_in[p] < number and (light < 0 or work[p] < work[light]):
                    light = p
            tried_in[light] = number
            tries += 1
            gap = work[heavy] - work[light]
            room_heavy, room_light = capacity - tokens[heavy], capacity - tokens[light]
            at_h, num_h, at_l, num_l = heavy * width, count[heavy], light * width, count[light]
            left = find_move(
                lengths, at_h, num_h, at_l, num_l, gap, room_heavy, room_light, linear, move, sums, places
            )
            grown = move[LIGHT_COUNT] - move[HEAVY_COUNT]
            grown += (move[LIGHT_OTHER_1] >= 0) + (move[LIGHT_OTHER_2] >= 0)
            grown -= (move[LIGHT_BUT] >= 0) + (move[HEAVY_OTHER] >= 0)
            if left < gap and num_h + grown <= width and num_l - grown <= width:
                _apply(lengths, pieces, at_h, num_h, at_l, num_l, move, sums)
                count[heavy], count[light] = num_h + grown, num_l - grown
                for p in (heavy, light):
                    tokens[p], work[p] = ZERO, ZERO
                    for q in range(p * width, p * width + count[p]):
                        tokens[p] += lengths[q]
                        work[p] += lengths[q] * (lengths[q] + linear)
                break
            left = gap
        if left == gap:
            return
        number += ONE


@njit(inline="always")
def _apply(
    lengths: NDArray[np.int64],
    pieces: NDArray[np.int64],
    at_h: int,
    num_h: int,
    at_l: int,
    num_l: int,
    move: NDArray[np.int64],
    merged: NDArray[np.int64],
) -> None:
    """Make the exchange: merge both packs, of equal lengths the heavy one's samples first, and separate them again.

    `merged` (int64[3 * (num_h + num_l)] or more) is scratch space.
    """
    a, b = ZERO, ZERO
    for q in range(0, 3 * (num_h + num_l), 3):
        if b == num_l or (a < num_h and lengths[at_h + a] >= lengths[at_l + b]):
            at = at_h + a
            changes = move[HEAVY_FIRST] <= a < move[HEAVY_FIRST] + move[HEAVY_COUNT] or a == move[HEAVY_OTHER]
            merged[q] = at_l if changes else at_h
            a += ONE
        else:
            at = at_l + b
            changes = move[LIGHT_FIRST] <= b < move[LIGHT_FIRST] + move[LIGHT_COUNT] and b != move[LIGHT_BUT]
            changes = changes or b == move[LIGHT_OTHER_1] or b == move[LIGHT_OTHER_2]
            merged[q] = at_h if changes else at_l
            b += ONE
        merged[q + 1], merged[q + 2] = lengths[at], pieces[at]
    a, b = at_h, at_l
    for q in range(0, 3 * (num_h + num_l), 3):
        if merged[q] == at_h:
            lengths[a], pieces[a] = merged[q + 1], merged[q + 2]
            a += ONE
        else:
            lengths[b], pieces[b] = merged[q + 1], merged[q + 2]
            b += ONE
