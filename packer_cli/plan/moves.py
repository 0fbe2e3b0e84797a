"""The best exchange of samples between two packs: the heavy one loses attention work, and both stay within capacity.

A heavy pack gives a light one a sample, for nothing or for a shorter one; a sample for several short ones of about the
same total (the same tokens, less work: x^2 > sum y_i^2); or several for more that are shorter. What would be ideal is
known in closed form, so only its neighbours are tried, and what does not fit exactly is topped up or has a sample
swapped: O(a log b) for packs of a and b samples, beside a limited number of tries that cost O(log b).

A pack is a row of lengths by falling size.
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
"""Fields of a move, places in the two rows: each pack gives so many samples from `FIRST` on, but for `BUT`, and
`OTHER` ones apart; -1 stands for none."""

MOST_PLACES, NUM_PLACE_FIELDS = 1024, 7
"""Room for the places that are tried: samples of the heavy pack (first, count, other), their tokens and free ones,
their work, and the light samples from `start` up to `last` that fit."""

# Not Python's own numbers: numba would compile a function anew for each of those that it is called with.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))

_STARTS = 8
"""Places in the light pack from which several short samples are gathered."""
_FEW = 48
"""Samples of a light pack up to which all places are tried."""
_TOP_UPS = 8
"""Pairs of samples that are tried to fill what is left after those."""
_SWAPS = 16
"""Samples that are tried to be exchanged for a longer one."""


@njit(cache=True)
def find_move(
    heavy: NDArray[np.int64],
    light: NDArray[np.int64],
    gap: int,
    room_heavy: int,
    room_light: int,
    move: NDArray[np.int64],
    scratch: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Write the exchange that comes nearest to an even split to `move`; gives the gap that it leaves.

    What is left is `gap` or more where nothing helps: an exchange that turns the gap round scores no better than
    none, so the greater of the two works always falls.

    Args:
        heavy, light: int64, lengths of the two packs, falling.
        gap: by how much the heavy pack's work is greater.
        room_heavy, room_light: free tokens.
        move: int64[NUM_FIELDS], written to.
        scratch: int64[4, more than the samples of a pack], of any content.
        places: int64[MOST_PLACES, NUM_PLACE_FIELDS], of any content.
    """
    _note(move, ZERO, ZERO, NONE, ZERO, ZERO, NONE, NONE, NONE)
    left = _try_one(heavy, light, gap, room_light, move, gap)
    of_heavy, of_light = scratch[:2], scratch[2:4]
    _sum_up(heavy, of_heavy)
    _sum_up(light, of_light)
    slack = room_heavy + room_light
    stride = max(ONE, len(light) // _STARTS)
    for stage in range(3):
        if stage == 1:
            num_places = _list_blocks(heavy, light, of_heavy, of_light, gap, room_heavy, slack, places)
        else:
            num_places = _list_singles(heavy, light, of_light, gap, room_heavy, slack, stride, places)
        left = _fill_places(light, of_light, gap, slack, places, num_places, move, left)
        if 2 * left <= gap or (stage == 1 and not 1 < stride <= _FEW // _STARTS):
            break
        if stage == 1:
            stride = ONE
    return left


@njit(cache=True)
def _note(
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
    move[HEAVY_FIRST], move[HEAVY_COUNT], move[HEAVY_OTHER] = heavy_first, heavy_count, heavy_other
    move[LIGHT_FIRST], move[LIGHT_COUNT], move[LIGHT_BUT] = light_first, light_count, light_but
    move[LIGHT_OTHER_1], move[LIGHT_OTHER_2] = light_other_1, light_other_2


@njit(cache=True)
def last_at_least(row: NDArray[np.int64], least: int) -> int:
    """Place of the shortest sample of at least this length; -1 if there is none. O(log n)."""
    low, high = 0, len(row)
    while low < high:
        middle = (low + high) // 2
        if row[middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True)
def _try_one(
    heavy: NDArray[np.int64], light: NDArray[np.int64], gap: int, room_light: int, move: NDArray[np.int64], left: int
) -> int:
    """One sample for nothing, or for a shorter one: ideally x^2 - y^2 = gap / 2."""
    for i in range(len(heavy)):
        x = heavy[i]
        if i > 0 and x == heavy[i - 1]:
            continue
        if x <= room_light and len(heavy) > 1 and abs(gap - 2 * x * x) < left:
            left = abs(gap - 2 * x * x)
            _note(move, i, ONE, NONE, ZERO, ZERO, NONE, NONE, NONE)
        ideal = np.sqrt(max(0.0, x * x - gap / 2))
        near = last_at_least(light, max(int(np.ceil(ideal)), x - room_light))
        for j in range(max(near, 0), min(near + 2, len(light))):
            y = light[j]
            if y < x and x - y <= room_light and abs(gap - 2 * (x * x - y * y)) < left:
                left = abs(gap - 2 * (x * x - y * y))
                _note(move, i, ONE, NONE, j, ONE, NONE, NONE, NONE)
    return left


@njit(cache=True)
def _sum_up(row: NDArray[np.int64], sums: NDArray[np.int64]) -> None:
    """Write tokens and work of the samples before each place to `sums` (int64[2, >n])."""
    sums[0, 0] = 0
    sums[1, 0] = 0
    for q in range(len(row)):
        sums[0, q + 1] = sums[0, q] + row[q]
        sums[1, q + 1] = sums[1, q] + row[q] * row[q]


@njit(cache=True)
def _last_within(sums: NDArray[np.int64], size: int, start: int, tokens: int) -> int:
    """The greatest place up to which the samples from `start` on have at most so many tokens. O(log n)."""
    low, high = start, size
    while low < high:
        middle = (low + high + 1) // 2
        if sums[0, middle] - sums[0, start] <= tokens:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True)
def _list_singles(
    heavy: NDArray[np.int64],
    light: NDArray[np.int64],
    of_light: NDArray[np.int64],
    gap: int,
    room_heavy: int,
    slack: int,
    stride: int,
    places: NDArray[np.int64],
) -> int:
    """Places of one sample for several shorter ones; or with the shortest of its pack, so that one more of them fits.

    Samples of length y do x y work in the place of x, so x (x - y) = gap / 2 is ideal.
    """
    n = ZERO
    for j in range(0, len(light), stride):
        y = light[j]
        near = last_at_least(heavy, int(np.ceil((y + np.sqrt(float(y) * y + 2.0 * gap)) / 2)))
        for i in range(max(near - 1, 0), min(near + 3, len(heavy))):
            x = heavy[i]
            if x <= y:
                continue
            room, work = x + room_heavy, x * x
            last = _last_within(of_light, len(light), j, room)
            n = _list_place(places, n, ZERO, ZERO, i, room, work, j, last)
            if last == len(light) or room - (of_light[0, last] - of_light[0, j]) <= slack:
                continue
            tail = len(heavy)
            while room < of_light[0, last + 1] - of_light[0, j] and tail > i + 1:
                tail -= 1
                room += heavy[tail]
                work += heavy[tail] * heavy[tail]
            last = _last_within(of_light, len(light), j, room)
            n = _list_place(places, n, tail, len(heavy) - tail, i, room, work, j, last)
    return n


@njit(cache=True)
def _list_blocks(
    heavy: NDArray[np.int64],
    light: NDArray[np.int64],
    of_heavy: NDArray[np.int64],
    of_light: NDArray[np.int64],
    gap: int,
    room_heavy: int,
    slack: int,
    places: NDArray[np.int64],
) -> int:
    """Places of neighbouring samples of the heavy pack for a greater number of shorter ones.

    The more samples are given, the more work: where that passes gap / 2 is found by halving.
    """
    n = ZERO
    i = ZERO
    while i < len(heavy):
        back = 1
        while back <= len(light) and light[len(light) - back] < heavy[i]:
            j = len(light) - back
            back *= 2
            low, high = i + 1, len(heavy)
            while low < high:
                middle = (low + high) // 2
                room = of_heavy[0, middle] - of_heavy[0, i] + room_heavy
                last = _last_within(of_light, len(light), j, room)
                moved = of_heavy[1, middle] - of_heavy[1, i] - (of_light[1, last] - of_light[1, j])
                if 2 * moved >= gap or room - (of_light[0, last] - of_light[0, j]) > slack:
                    high = middle
                else:
                    low = middle + 1
            for end in range(max(i + 1, low - 1), low + 1):
                room = of_heavy[0, end] - of_heavy[0, i] + room_heavy
                work = of_heavy[1, end] - of_heavy[1, i]
                last = _last_within(of_light, len(light), j, room)
                n = _list_place(places, n, i, end - i, NONE, room, work, j, last)
        i = max(ONE, 2 * i)
    return n


@njit(cache=True)
def _list_place(
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
    if n == len(places):
        return n
    places[n, 0], places[n, 1], places[n, 2] = heavy_first, heavy_count, heavy_other
    places[n, 3], places[n, 4], places[n, 5], places[n, 6] = room, work, start, last
    return n + 1


@njit(cache=True)
def _fill_places(
    light: NDArray[np.int64],
    of_light: NDArray[np.int64],
    gap: int,
    slack: int,
    places: NDArray[np.int64],
    num_places: int,
    move: NDArray[np.int64],
    left: int,
) -> int:
    """Fill the place of samples of the heavy pack, all but `slack` tokens of it, with light ones from `start` on.

    As many as fit are taken in a row, up to two of them put back. Then one is exchanged for a longer one, or up to two
    others fill what is left.
    """
    for n in range(num_places):
        heavy_first, heavy_count, heavy_other = places[n, 0], places[n, 1], places[n, 2]
        room, work, start, last = places[n, 3], places[n, 4], places[n, 5], places[n, 6]
        for stop in range(last, max(start, last - 3), -1):
            free = room - (of_light[0, stop] - of_light[0, start])
            moved = work - (of_light[1, stop] - of_light[1, start])
            count = stop - start
            if free <= slack and abs(gap - 2 * moved) < left:
                left = abs(gap - 2 * moved)
                _note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, NONE, NONE)
            if free > slack:
                for but in range(start, stop, max(1, count // _SWAPS)):
                    longest = light[but] + free
                    j = last_at_least(light, longest + 1) + 1
                    done = moved + light[but] * light[but] - light[j] * light[j]
                    if (j < start or j >= stop) and light[j] >= longest - slack and abs(gap - 2 * done) < left:
                        left = abs(gap - 2 * done)
                        _note(move, heavy_first, heavy_count, heavy_other, start, count, but, j, NONE)
            fitting = max(stop, last_at_least(light, free + 1) + 1)
            for j in range(fitting, min(fitting + _TOP_UPS, len(light))):
                y = light[j]
                done = moved - y * y
                if free - y <= slack and abs(gap - 2 * done) < left:
                    left = abs(gap - 2 * done)
                    _note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, j, NONE)
                other = max(j + 1, last_at_least(light, free - y + 1) + 1)
                if other < len(light) and free - y - light[other] <= slack:
                    done -= light[other] * light[other]
                    if abs(gap - 2 * done) < left:
                        left = abs(gap - 2 * done)
                        _note(move, heavy_first, heavy_count, heavy_other, start, count, NONE, j, other)
    return left
