"""Exchanges of samples within an iteration, each between its heaviest pack and a lighter one.

A heavy pack gives a light one a sample, for nothing or for a shorter one; a sample for several short ones of about the
same total (the same tokens, less work: x^2 > sum y_i^2); or several for more that are shorter. A sample of x tokens
does x (x + linear) work, see `plan.core.cost`; equal tokens have the same linear term. The ideal length is known in
closed form, so only its neighbours are tried; an exchange that does not fit is topped up, or one sample swapped:
O(a log b) for packs of a and b samples, besides a limited number of tries that cost O(log b).

A pack is a range of `lengths`, decreasing: `at_h` and `at_l` are where the heavy and the light one begin, `num_h` and
`num_l` their numbers of samples. Arrays are flat and never sliced, which compiles faster.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
    fill_places,
    list_place,
    note,
    num_at_least,
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


_STARTS = 8
"""Places in the light pack from which to take several short samples."""
_FEW = 48
"""Samples of a light pack up to which all of its places are tried."""


@njit(inline="always")
def find_move(
    lengths: NDArray[np.int64],
    at_h: int,
    num_h: int,
    at_l: int,
    num_l: int,
    gap: int,
    room_heavy: int,
    room_light: int,
    linear: int,
    move: NDArray[np.int64],
    sums: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Write the exchange that comes nearest to an even split to `move`; returns the gap that it leaves.

    Returns `gap` if no exchange narrows it: one that only reverses it does not count, so that the greater of the two
    works always decreases.

    Args:
        lengths: int64, of all packs.
        gap: excess of the heavy pack's work over the light one's.
        room_heavy, room_light: free tokens.
        linear: tokens, see `Cost.linear_tokens`.
        move: int64[NUM_FIELDS], written to.
        sums: int64[2 * (num_h + num_l + 2)] or more, scratch space.
        places: int64[MOST_PLACES], scratch space.
    """
    note(move, ZERO, ZERO, NONE, ZERO, ZERO, NONE, NONE, NONE)
    left = _try_one(lengths, at_h, num_h, at_l, num_l, gap, room_light, linear, move, gap)
    of_light = 2 * (num_h + 1)
    _sum_up(lengths, at_h, num_h, linear, sums, ZERO)
    _sum_up(lengths, at_l, num_l, linear, sums, of_light)
    slack = room_heavy + room_light
    stride = num_l // _STARTS if num_l >= _STARTS else ONE
    for stage in range(3):
        if stage == 1:
            num_places = _list_blocks(lengths, at_h, num_h, at_l, num_l, sums, gap, room_heavy, slack, places)
        else:
            num_places = _list_singles(
                lengths, at_h, num_h, at_l, num_l, sums, of_light, gap, room_heavy, slack, linear, stride, places
            )
        left = fill_places(lengths, at_l, num_l, sums, of_light, gap, slack, linear, places, num_places, move, left)
        if 2 * left <= gap or (stage == 1 and not 1 < stride <= _FEW // _STARTS):
            break
        if stage == 1:
            stride = ONE
    return left


@njit(cache=True, no_cpython_wrapper=True)
def _try_one(
    lengths: NDArray[np.int64],
    at_h: int,
    num_h: int,
    at_l: int,
    num_l: int,
    gap: int,
    room_light: int,
    linear: int,
    move: NDArray[np.int64],
    left: int,
) -> int:
    """One sample for nothing, or for a shorter one: ideally x (x + linear) - y (y + linear) = gap / 2."""
    for i in range(num_h):
        x = lengths[at_h + i]
        if i > 0 and x == lengths[at_h + i - 1]:
            continue
        work = x * (x + linear)
        if x <= room_light and num_h > 1 and abs(gap - 2 * work) < left:
            left = abs(gap - 2 * work)
            note(move, i, ONE, NONE, ZERO, ZERO, NONE, NONE, NONE)
        rest = work - gap / 2
        least = np.int64(np.ceil((np.sqrt(float(linear) * linear + 4 * rest) - linear) / 2)) if rest > 0 else ZERO
        if least < x - room_light:
            least = x - room_light
        near = num_at_least(lengths, at_l, num_l, least)
        for j in range(near - 1, near + 1):
            if j < 0 or j >= num_l:
                continue
            y = lengths[at_l + j]
            left_then = abs(gap - 2 * (work - y * (y + linear)))
            if y < x and x - y <= room_light and left_then < left:
                left = left_then
                note(move, i, ONE, NONE, j, ONE, NONE, NONE, NONE)
    return left


@njit(cache=True, no_cpython_wrapper=True)
def _sum_up(lengths: NDArray[np.int64], begin: int, num: int, linear: int, sums: NDArray[np.int64], at: int) -> None:
    """Write the tokens and the work of the samples before each place to `sums`, in pairs, from `at` on."""
    tokens, work = ZERO, ZERO
    for q in range(num):
        sums[at + 2 * q], sums[at + 2 * q + 1] = tokens, work
        tokens += lengths[begin + q]
        work += lengths[begin + q] * (lengths[begin + q] + linear)
    sums[at + 2 * num], sums[at + 2 * num + 1] = tokens, work


@njit(cache=True, no_cpython_wrapper=True)
def _last_within(sums: NDArray[np.int64], at: int, num: int, start: int, tokens: int) -> int:
    """The greatest place up to which the samples from `start` on have at most `tokens` tokens. O(log n)."""
    low, high = start, num
    tokens += sums[at + 2 * start]
    while low < high:
        middle = (low + high + 1) // 2
        if sums[at + 2 * middle] <= tokens:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, no_cpython_wrapper=True)
def _list_singles(
    lengths: NDArray[np.int64],
    at_h: int,
    num_h: int,
    at_l: int,
    num_l: int,
    sums: NDArray[np.int64],
    of_light: int,
    gap: int,
    room_heavy: int,
    slack: int,
    linear: int,
    stride: int,
    places: NDArray[np.int64],
) -> int:
    """List places of one sample, and of it with the shortest of its pack, to fill with several shorter ones.

    Samples of length y do x (y + linear) work in the place of x, so x (x - y) = gap / 2 is ideal.
    """
    n, j = ZERO, ZERO
    while j < num_l:
        y = lengths[at_l + j]
        ideal = np.int64(np.ceil((y + np.sqrt(float(y) * y + 2.0 * gap)) / 2))
        near = num_at_least(lengths, at_h, num_h, ideal)
        for i in range(near - 2, near + 2):
            if i < 0 or i >= num_h or lengths[at_h + i] <= y:
                continue
            x = lengths[at_h + i]
            room, work = x + room_heavy, x * (x + linear)
            last = _last_within(sums, of_light, num_l, j, room)
            n = list_place(places, n, ZERO, ZERO, i, room, work, j, last)
            taken = sums[of_light + 2 * last] - sums[of_light + 2 * j]
            if last == num_l or room - taken <= slack:
                continue
            tail = num_h
            while room < taken + lengths[at_l + last] and tail > i + 1:
                tail -= 1
                room += lengths[at_h + tail]
                work += lengths[at_h + tail] * (lengths[at_h + tail] + linear)
            last = _last_within(sums, of_light, num_l, j, room)
            n = list_place(places, n, tail, num_h - tail, i, room, work, j, last)
        j += stride
    return n


@njit(cache=True, no_cpython_wrapper=True)
def _list_blocks(
    lengths: NDArray[np.int64],
    at_h: int,
    num_h: int,
    at_l: int,
    num_l: int,
    sums: NDArray[np.int64],
    gap: int,
    room_heavy: int,
    slack: int,
    places: NDArray[np.int64],
) -> int:
    """List places of consecutive samples of the heavy pack to fill with a greater number of shorter ones.

    The more samples it gives, the more work; bisection finds where that passes gap / 2.
    """
    of_light = 2 * (num_h + 1)
    n, i = ZERO, ZERO
    while i < num_h:
        back = ONE
        while back <= num_l and lengths[at_l + num_l - back] < lengths[at_h + i]:
            j = num_l - back
            back *= 2
            low, high = i + 1, num_h
            while low < high:
                end = (low + high) // 2
                room = sums[2 * end] - sums[2 * i] + room_heavy
                last = _last_within(sums, of_light, num_l, j, room)
                given = sums[2 * end + 1] - sums[2 * i + 1]
                received = sums[of_light + 2 * last + 1] - sums[of_light + 2 * j + 1]
                free = room - (sums[of_light + 2 * last] - sums[of_light + 2 * j])
                if 2 * (given - received) >= gap or free > slack:
                    high = end
                else:
                    low = end + 1
            for end in range(low - 1, low + 1):
                if end > i:
                    room = sums[2 * end] - sums[2 * i] + room_heavy
                    work = sums[2 * end + 1] - sums[2 * i + 1]
                    last = _last_within(sums, of_light, num_l, j, room)
                    n = list_place(places, n, i, end - i, NONE, room, work, j, last)
        i = 2 * i if i else ONE
    return n
