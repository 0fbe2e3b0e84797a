"""Places in a heavy pack that samples of a light one fill: which to try, and how to fill them.

Only kernels call these functions. They have no Python wrapper, which compiles faster.
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
"""Fields of a move, as places in the two packs: each pack gives `COUNT` samples from `FIRST` on, except `BUT`, and the
separate samples `OTHER`; -1 for none."""

NUM_PLACE_FIELDS = 7
MOST_PLACES = 1024 * NUM_PLACE_FIELDS
"""Room for the places to try. Fields: samples of the heavy pack (first, count, other), their tokens plus the pack's
free ones, their work, and the light samples from `start` up to `last` that fit."""

# NumPy integers: numba would compile a function again for each Python integer that it is called with.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))

_TOP_UPS = 8
"""Samples to try, each alone and with a second one, in the tokens that remain free."""
_SWAPS = 16
"""About how many samples to try to swap for a longer one."""


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
    """How many samples of a pack have at least this length: the place of the first shorter one. O(log n)."""
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
    """Write a place from `n` on, if there is room; returns where the next one goes."""
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
    """Fill each place, all but at most `slack` tokens of it, with light samples from `start` on; returns the gap left.

    Takes as many consecutive samples as fit, or up to two fewer. Then one of them may be swapped for a longer one, or
    up to two others fill what is left.
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
