"""Places in a heavy pack that a light one's samples fill: what is tried, and how it is filled.

For kernels alone: without a way in from Python, which must not call them, they compile sooner.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

NUM_FIELDS = 8
HEAVY_FIRST, HEAVY_COUNT, HEAVY_OTHER, LIGHT_FIRST, LIGHT_COUNT, LIGHT_BUT, LIGHT_OTHER_1, LIGHT_OTHER_2 = range(
    NUM_FIELDS
)
"""Fields of a move, places in the two packs: each gives so many samples from `FIRST` on, but for `BUT`, and `OTHER`
ones apart; -1 stands for none."""

NUM_PLACE_FIELDS = 7
MOST_PLACES = 1024 * NUM_PLACE_FIELDS
"""Room for the places that are tried: samples of the heavy pack (first, count, other), their tokens and free ones,
their work, and the light samples from `start` up to `last` that fit."""

# Not Python's own numbers: numba would compile a function anew for each of those that it is called with.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))

_TOP_UPS = 8
"""Pairs of samples that are tried to fill what is left after those."""
_SWAPS = 16
"""Samples that are tried to be exchanged for a longer one."""


@njit(cache=True, no_cpython_wrapper=True)
def note(
    move: NDArray[np.int64],
    heavy_first: int,
    heavy_count: int,
    heavy_other: int,
    light_first: int,
    light_count: int,
    light_but: int,
    light_other_1: int,
    light_other_2: int,
) -> None:
    """Write the fields of a move."""
    move[HEAVY_FIRST], move[HEAVY_COUNT], move[HEAVY_OTHER] = heavy_first, heavy_count, heavy_other
    move[LIGHT_FIRST], move[LIGHT_COUNT], move[LIGHT_BUT] = light_first, light_count, light_but
    move[LIGHT_OTHER_1], move[LIGHT_OTHER_2] = light_other_1, light_other_2


@njit(cache=True, no_cpython_wrapper=True)
def num_at_least(lengths: NDArray[np.int64], begin: int, num: int, least: int) -> int:
    """How many samples of a pack have at least this length, which is the place of the first that has not. O(log n)."""
    low, high = ZERO, num
    while low < high:
        middle = (low + high) // 2
        if lengths[begin + middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, no_cpython_wrapper=True)
def list_place(
    places: NDArray[np.int64],
    n: int,
    heavy_first: int,
    heavy_count: int,
    heavy_other: int,
    room: int,
    work: int,
    start: int,
    last: int,
) -> int:
    """Write it from `n` on; gives where the next one goes."""
    if n == len(places):
        return n
    places[n], places[n + 1], places[n + 2] = heavy_first, heavy_count, heavy_other
    places[n + 3], places[n + 4], places[n + 5], places[n + 6] = room, work, start, last
    return n + NUM_PLACE_FIELDS


@njit(cache=True, no_cpython_wrapper=True)
def fill_places(
    lengths: NDArray[np.int64],
    at_l: int,
    num_l: int,
    sums: NDArray[np.int64],
    of_light: int,
    gap: int,
    slack: int,
    linear: int,
    places: NDArray[np.int64],
    places_end: int,
    move: NDArray[np.int64],
    left: int,
) -> int:
    """Fill the place of samples of the heavy pack, all but `slack` tokens of it, with light ones from `start` on.

    As many as fit are taken in a row, up to two of them put back. Then one is exchanged for a longer one, or up to two
    others fill what is left.
    """
    for n in range(0, places_end, NUM_PLACE_FIELDS):
        heavy_first, heavy_count, heavy_other = places[n], places[n + 1], places[n + 2]
        room, work, start, last = places[n + 3], places[n + 4], places[n + 5], places[n + 6]
        stop = last
        while stop > start and stop > last - 3:
            free = room - (sums[of_light + 2 * stop] - sums[of_light + 2 * start])
            moved = work - (sums[of_light + 2 * stop + 1] - sums[of_light + 2 * start + 1])
            count = stop - start
            if free <= slack and abs(gap - 2 * moved) < left:
                left = abs(gap - 2 * moved)
                note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, NONE, NONE)
            but = start if free > slack else stop
            while but < stop:
                x = lengths[at_l + but]
                j = num_at_least(lengths, at_l, num_l, x + free + 1)
                y = lengths[at_l + j]
                left_then = abs(gap - 2 * (moved + (x - y) * (x + y + linear)))
                if (j < start or j >= stop) and y >= x + free - slack and left_then < left:
                    left = left_then
                    note(move, heavy_first, heavy_count, heavy_other, start, count, but, j, NONE)
                but += count // _SWAPS if count >= _SWAPS else ONE
            first = num_at_least(lengths, at_l, num_l, free + 1)
            if first < stop:
                first = stop
            for j in range(first, first + _TOP_UPS):
                if j >= num_l:
                    break
                y = lengths[at_l + j]
                done = moved - y * (y + linear)
                if free - y <= slack and abs(gap - 2 * done) < left:
                    left = abs(gap - 2 * done)
                    note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, j, NONE)
                other = num_at_least(lengths, at_l, num_l, free - y + 1)
                if other <= j:
                    other = j + 1
                if other < num_l and free - y - lengths[at_l + other] <= slack:
                    done -= lengths[at_l + other] * (lengths[at_l + other] + linear)
                    if abs(gap - 2 * done) < left:
                        left = abs(gap - 2 * done)
                        note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, j, other)
            stop -= 1
    return left
