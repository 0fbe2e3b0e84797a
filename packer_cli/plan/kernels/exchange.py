"""Exchanges of samples within an iteration, each between its heaviest pack and a lighter one.

A heavy pack gives a light one a sample, for nothing or for a shorter one; a sample for several short ones of about the
same total (the same tokens, less work: x^2 > sum y_i^2); or several for more that are shorter. A sample of x tokens
does x (x + linear) work, see `plan.core.cost`; equal tokens have the same linear term. The ideal length is known in
closed form, so only its neighbours are tried; an exchange that does not fit is topped up, or one sample swapped:
O(a log b) for packs of a and b samples, besides a limited number of tries that cost O(log b).

Only kernels call the functions without a Python wrapper, which compile faster.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import first_over, num_at_least
from packer_cli.plan.core.types import Int64Array

# NumPy integers: numba would compile a function again for each Python integer that it is called with.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))

MOST_PARTNERS = 31
"""Lighter packs to try before giving up on the heaviest one."""
MOST_TRIES = 64
"""Pairs of packs to search for an exchange, per pack of an iteration."""
TOLERANCE = 0.0002
"""Share of the least work by which the heaviest pack may exceed it."""


class Rows(NamedTuple):
    """The packs of an iteration; kernels keep them up to date."""

    lengths: Int64Array
    """int64[packs, width]: samples of each pack by decreasing length."""
    pieces: Int64Array
    """int64[packs, width]"""
    sizes: Int64Array
    """int64[packs]: samples of each pack, at most `width`."""
    tokens: Int64Array
    """int64[packs]"""
    work: Int64Array
    """int64[packs]"""


class Pack(NamedTuple):
    """One of n samples."""

    lengths: Int64Array
    """int64[n], decreasing."""
    tokens: Int64Array
    """int64[n + 1]: of the samples before each place."""
    work: Int64Array
    """int64[n + 1]: likewise."""
    room: int
    """Free tokens."""


class Pair(NamedTuple):
    """Two packs that may exchange samples."""

    heavy: Pack
    light: Pack
    gap: int
    """Work that the heavy pack has more."""
    linear: int
    """Tokens, see `Cost.linear_tokens`."""


class Chosen(NamedTuple):
    """Samples that a pack gives, as places in it: `num` from `first` on except `but`, and two others; -1 for none."""

    first: int
    num: int
    but: int
    other: int
    second: int


class Move(NamedTuple):
    """An exchange."""

    left: int
    """The gap that it leaves."""
    heavy: Chosen
    light: Chosen


_NOTHING = Chosen(ZERO, ZERO, NONE, NONE, NONE)


@njit(cache=True)
def exchange_until(rows: Rows, capacity: int, linear: int, limit: float, most_tries: int) -> None:
    """Lower the greatest work of these packs by exchanges, until it is within the limit or no exchange helps.

    Args:
        capacity: most tokens of a pack.
        linear: tokens, see `Cost.linear_tokens`.
        limit: greatest work at which to stop.
        most_tries: pairs of packs to search for an exchange; the last round may exceed it.
    """
    num, width = rows.lengths.shape
    scratch = np.empty((4, 2 * width), dtype=np.int64)
    tried_in = np.empty(num, dtype=np.int64)  # The round that last tried a pack.
    tried_in[:] = NONE
    number, tries = ZERO, ZERO
    while tries < most_tries:
        heavy = ZERO
        for p in range(num):
            if rows.work[p] > rows.work[heavy]:
                heavy = p
        if rows.work[heavy] <= limit:
            return
        tried_in[heavy] = number
        is_done = True
        for _ in range(min(MOST_PARTNERS, num - 1)):
            light = next_light(rows.work, tried_in, number)
            tries += 1
            gap = rows.work[heavy] - rows.work[light]
            pair = Pair(
                _pack(rows, heavy, capacity, linear, scratch[0], scratch[1]),
                _pack(rows, light, capacity, linear, scratch[2], scratch[3]),
                gap,
                linear,
            )
            move = find_move(pair)
            grown = _size(move.light) - _size(move.heavy)
            if move.left < gap and rows.sizes[heavy] + grown <= width and rows.sizes[light] - grown <= width:
                _apply(rows, heavy, light, move, linear, scratch)
                is_done = False
                break
        if is_done:
            return
        number += ONE


@njit(cache=True, no_cpython_wrapper=True)
def next_light(work: Int64Array, tried_in: Int64Array, number: int) -> int:
    """Find the pack with the least work that this round has not tried, one of which there is, and mark it as tried."""
    light = NONE
    for p in range(len(work)):
        if tried_in[p] < number and (light < 0 or work[p] < work[light]):
            light = p
    tried_in[light] = number
    return light


@njit(cache=True, no_cpython_wrapper=True)
def _pack(rows: Rows, p: int, capacity: int, linear: int, tokens: Int64Array, work: Int64Array) -> Pack:
    """Make a pack, and write its sums to `tokens` and `work`."""
    tokens[0] = work[0] = ZERO
    for q in range(rows.sizes[p]):
        length = rows.lengths[p, q]
        tokens[q + 1], work[q + 1] = tokens[q] + length, work[q] + length * (length + linear)
    return Pack(rows.lengths[p, : rows.sizes[p]], tokens, work, capacity - rows.tokens[p])


@njit(cache=True, no_cpython_wrapper=True)
def _size(chosen: Chosen) -> int:
    return chosen.num - (chosen.but >= 0) + (chosen.other >= 0) + (chosen.second >= 0)


@njit(inline="always")
def _apply(rows: Rows, heavy: int, light: int, move: Move, linear: int, merged: Int64Array) -> None:
    """Make the exchange: merge both packs, of equal lengths the heavy one's samples first, and separate them again.

    `merged` (int64[3 or more, samples of both]) is scratch space.
    """
    a, b = ZERO, ZERO
    num = rows.sizes[heavy] + rows.sizes[light]
    for q in range(num):
        is_heavy = b == rows.sizes[light] or (
            a < rows.sizes[heavy] and rows.lengths[heavy, a] >= rows.lengths[light, b]
        )
        pack, place, chosen = (heavy, a, move.heavy) if is_heavy else (light, b, move.light)
        changes = chosen.first <= place < chosen.first + chosen.num and place != chosen.but
        changes = changes or place == chosen.other or place == chosen.second
        merged[0, q] = light if is_heavy == changes else heavy
        merged[1, q], merged[2, q] = rows.lengths[pack, place], rows.pieces[pack, place]
        a, b = (a + ONE, b) if is_heavy else (a, b + ONE)
    for pack in (heavy, light):
        rows.sizes[pack] = rows.tokens[pack] = rows.work[pack] = ZERO
    for q in range(num):
        pack, length = merged[0, q], merged[1, q]
        rows.lengths[pack, rows.sizes[pack]], rows.pieces[pack, rows.sizes[pack]] = length, merged[2, q]
        rows.sizes[pack] += ONE
        rows.tokens[pack] += length
        rows.work[pack] += length * (length + linear)


_STARTS = 8
"""Places in the light pack from which to take several short samples."""
_FEW = 48
"""Samples of a light pack up to which all of its places are tried."""
_TOP_UPS = 8
"""Samples to try, each alone and with a second one, in the tokens that remain free."""
_SWAPS = 16
"""About how many samples to try to swap for a longer one."""


@njit(inline="always")
def find_move(pair: Pair) -> Move:
    """Find the exchange that comes nearest to an even split.

    It leaves the gap if no exchange narrows it: one that only reverses it does not count, so that the greater of the
    two works always decreases.
    """
    num = len(pair.light.lengths)
    stride = num // _STARTS if num >= _STARTS else ONE
    best = _try_singles(pair, stride, _try_one(pair))
    if 2 * best.left > pair.gap:
        best = _try_blocks(pair, best)
    if 2 * best.left > pair.gap and 1 < stride <= _FEW // _STARTS:
        best = _try_singles(pair, ONE, best)
    return best


@njit(cache=True, no_cpython_wrapper=True)
def _try_one(pair: Pair) -> Move:
    """Try one sample for nothing, or for a shorter one: ideally x (x + linear) - y (y + linear) = gap / 2."""
    heavy, light, gap, linear = pair.heavy.lengths, pair.light.lengths, pair.gap, pair.linear
    best = Move(gap, _NOTHING, _NOTHING)
    for i in range(len(heavy)):
        x = heavy[i]
        if i > 0 and x == heavy[i - 1]:
            continue
        given = Chosen(i, ONE, NONE, NONE, NONE)
        work = x * (x + linear)
        if x <= pair.light.room and len(heavy) > 1 and abs(gap - 2 * work) < best.left:
            best = Move(abs(gap - 2 * work), given, _NOTHING)
        rest = work - gap / 2
        least = np.int64(np.ceil((np.sqrt(float(linear) * linear + 4 * rest) - linear) / 2)) if rest > 0 else ZERO
        if least < x - pair.light.room:
            least = x - pair.light.room
        near = num_at_least(light, least)
        for j in range(max(near - 1, ZERO), min(near + 1, len(light))):
            y = light[j]
            left = abs(gap - 2 * (work - y * (y + linear)))
            if y < x and x - y <= pair.light.room and left < best.left:
                best = Move(left, given, Chosen(j, ONE, NONE, NONE, NONE))
    return best


@njit(cache=True, no_cpython_wrapper=True)
def _last_within(pack: Pack, start: int, tokens: int) -> int:
    """Find the greatest place up to which the samples from `start` on have at most `tokens` tokens. O(log n)."""
    return first_over(pack.tokens, start + 1, len(pack.lengths) + 1, pack.tokens[start] + tokens) - 1


@njit(cache=True, no_cpython_wrapper=True)
def _try_singles(pair: Pair, stride: int, best: Move) -> Move:
    """Try one sample, or with it the shortest of its pack, for several shorter ones, from every `stride`-th on.

    Samples of length y do x (y + linear) work in the place of x, so x (x - y) = gap / 2 is ideal.
    """
    heavy, light, slack = pair.heavy, pair.light, pair.heavy.room + pair.light.room
    num = len(heavy.lengths)
    for j in range(ZERO, len(light.lengths), stride):
        y = light.lengths[j]
        ideal = np.int64(np.ceil((y + np.sqrt(float(y) * y + 2.0 * pair.gap)) / 2))
        near = num_at_least(heavy.lengths, ideal)
        for i in range(max(near - 2, ZERO), min(near + 2, num)):
            x = heavy.lengths[i]
            if x <= y:
                continue
            room, work = x + heavy.room, x * (x + pair.linear)
            best = _fill(pair, Chosen(ZERO, ZERO, NONE, i, NONE), room, work, j, best)
            last = _last_within(light, j, room)
            taken = light.tokens[last] - light.tokens[j]
            if last == len(light.lengths) or room - taken <= slack:
                continue
            tail = num
            while tail > i + 1 and room + heavy.tokens[num] - heavy.tokens[tail] < taken + light.lengths[last]:
                tail -= 1
            room += heavy.tokens[num] - heavy.tokens[tail]
            work += heavy.work[num] - heavy.work[tail]
            best = _fill(pair, Chosen(tail, num - tail, NONE, i, NONE), room, work, j, best)
    return best


@njit(cache=True, no_cpython_wrapper=True)
def _try_blocks(pair: Pair, best: Move) -> Move:
    """Try consecutive samples of the heavy pack for a greater number of shorter ones.

    The more samples it gives, the more work; bisection finds where that passes gap / 2.
    """
    heavy, light, slack = pair.heavy, pair.light, pair.heavy.room + pair.light.room
    i = ZERO
    while i < len(heavy.lengths):
        back = ONE
        while back <= len(light.lengths) and light.lengths[len(light.lengths) - back] < heavy.lengths[i]:
            j = len(light.lengths) - back
            back *= 2
            low, high = i + 1, len(heavy.lengths)
            while low < high:
                end = (low + high) // 2
                room = heavy.tokens[end] - heavy.tokens[i] + heavy.room
                last = _last_within(light, j, room)
                moved = heavy.work[end] - heavy.work[i] - (light.work[last] - light.work[j])
                if 2 * moved >= pair.gap or room - (light.tokens[last] - light.tokens[j]) > slack:
                    high = end
                else:
                    low = end + 1
            for end in range(max(low - 1, i + 1), low + 1):
                room = heavy.tokens[end] - heavy.tokens[i] + heavy.room
                work = heavy.work[end] - heavy.work[i]
                best = _fill(pair, Chosen(i, end - i, NONE, NONE, NONE), room, work, j, best)
        i = 2 * i if i else ONE
    return best


@njit(cache=True, no_cpython_wrapper=True)
def _fill(pair: Pair, given: Chosen, room: int, work: int, start: int, best: Move) -> Move:
    """Fill `room` tokens, all but what the light pack can hold of them, with its samples from `start` on.

    Takes as many consecutive samples as fit, or up to two fewer. Then one of them may be swapped for a longer one, or
    up to two others fill what is left.

    Args:
        given: samples of the heavy pack, in whose place they come.
        room: their tokens, and the pack's free ones.
        work: their work.
        best: the best exchange so far.

    Returns:
        The best exchange.
    """
    light, gap, linear, lengths = pair.light, pair.gap, pair.linear, pair.light.lengths
    slack = pair.heavy.room + light.room
    last = _last_within(light, start, room)
    for stop in range(last, max(start, last - 3), -1):
        free = room - (light.tokens[stop] - light.tokens[start])
        moved = work - (light.work[stop] - light.work[start])
        num = stop - start
        if free <= slack and abs(gap - 2 * moved) < best.left:
            best = Move(abs(gap - 2 * moved), given, Chosen(start, num, NONE, NONE, NONE))
        for but in range(start if free > slack else stop, stop, max(num // _SWAPS, ONE)):
            x = lengths[but]
            j = num_at_least(lengths, x + free + 1)
            y = lengths[j]
            left = abs(gap - 2 * (moved + (x - y) * (x + y + linear)))
            if (j < start or j >= stop) and y >= x + free - slack and left < best.left:
                best = Move(left, given, Chosen(start, num, but, j, NONE))
        first = max(stop, num_at_least(lengths, free + 1))
        for j in range(first, min(first + _TOP_UPS, len(lengths))):
            y = lengths[j]
            done = moved - y * (y + linear)
            if free - y <= slack and abs(gap - 2 * done) < best.left:
                best = Move(abs(gap - 2 * done), given, Chosen(start, num, NONE, j, NONE))
            other = max(j + 1, num_at_least(lengths, free - y + 1))
            if other < len(lengths) and free - y - lengths[other] <= slack:
                done -= lengths[other] * (lengths[other] + linear)
                if abs(gap - 2 * done) < best.left:
                    best = Move(abs(gap - 2 * done), given, Chosen(start, num, NONE, j, other))
    return best
