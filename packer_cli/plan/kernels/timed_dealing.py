"""Deals samples to groups of GPUs by predicted seconds, and evens the groups out (FlexSP, Hydraulis).

Group p is of the kind `kinds[p]`. Seconds follow from integers, so they do not depend on the order of the samples.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.cost import KernelCosts
from packer_cli.plan.core.types import Float64Array, Int64Array

NONE = cast(int, np.int64(-1))
_GAIN = 1e-9
"""An exchange must lower the seconds by this share, so that rounding starts no endless loop."""

_MOST_DIVIDED = 10
"""Samples of two groups of which every division is tried."""


class Dealt(NamedTuple):
    """n samples that are dealt to p groups; kernels keep it up to date."""

    group_of: Int64Array
    """int64[n]"""
    tokens: Int64Array
    """int64[p]: sum of s."""
    work: Int64Array
    """int64[p]: sum of s^2."""


@njit(cache=True, no_cpython_wrapper=True)
def copy_to(source: Int64Array, target: Int64Array) -> None:
    """Set `target[:] = source`, but compile at once: numba's own would compile messages of errors for seconds."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, no_cpython_wrapper=True)
def hash_of(counts: Int64Array) -> np.uint64:
    """Hash the counts (FNV-1a); never 0."""
    value = np.uint64(0xCBF29CE484222325)
    for count in counts:
        value = (value ^ np.uint64(count)) * np.uint64(0x100000001B3)
    return value | np.uint64(1)


@njit(cache=True, no_cpython_wrapper=True)
def seconds_of(rates: Float64Array, kind: int, work: int, tokens: int) -> float:
    """Predict the seconds of a group, see `GroupCosts`; 0 without samples."""
    return rates[0, kind] * work + rates[1, kind] * tokens + rates[2, kind] if tokens else 0.0


@njit(cache=True)
def deal(
    lengths: Int64Array, kinds: Int64Array, costs: KernelCosts, limit: float, by_room: bool, dealt: Dealt
) -> float:
    """Deal each sample in turn to the group that would finish first, of equal ones to the first. O(n p).

    Graham's LPT on unlike machines, with capacities.

    Args:
        lengths: int64[n], decreasing.
        limit: give up when a group takes this many seconds.
        by_room: to the group with the least room that holds it, for batches that hardly fit.

    Returns:
        Seconds of the slowest group; infinite if a sample found no room, or the limit was reached.
    """
    dealt.tokens[:] = 0
    dealt.work[:] = 0
    slowest = 0.0
    for i in range(len(lengths)):
        length = lengths[i]
        square = length * length
        best, least, seconds = -1, np.inf, 0.0
        for p in range(len(kinds)):
            room = costs.capacity[kinds[p]] - dealt.tokens[p]
            if room >= length:
                done = seconds_of(costs.rates, kinds[p], dealt.work[p] + square, dealt.tokens[p] + length)
                rank = float(room) if by_room else done
                if rank < least:
                    best, least, seconds = p, rank, done
        if best < 0 or seconds >= limit:
            return np.inf
        slowest = max(slowest, seconds)
        dealt.group_of[i] = best
        dealt.tokens[best] += length
        dealt.work[best] += square
    return slowest


@njit(cache=True)
def even_out(
    lengths: Int64Array, kinds: Int64Array, costs: KernelCosts, most_steps: int, enough: float, dealt: Dealt
) -> float:
    """Relieve the slowest group by moving a sample away or swapping it for a shorter one, while that helps.

    Each step takes the exchange after which the slower of the two groups takes least. Where none helps, the samples of
    the slowest and one other group are divided again, if they are few enough to try every division. O(samples of the
    slowest group times n) a step.

    Args:
        lengths: int64[n], in any order.
        most_steps: exchanges before giving up. Not a literal: numba compiles the kernel again for each.
        enough: seconds at which to stop.

    Returns:
        Seconds of the slowest group.
    """
    num = len(kinds)
    seconds = np.empty(num)
    for p in range(num):
        seconds[p] = seconds_of(costs.rates, kinds[p], dealt.work[p], dealt.tokens[p])
    for _ in range(most_steps):
        slowest = int(np.argmax(seconds))
        least = seconds[slowest] * (1 - _GAIN)
        if seconds[slowest] <= enough:
            break
        kind = kinds[slowest]
        given, taken, to = NONE, NONE, NONE
        for i in range(len(lengths)):
            if dealt.group_of[i] != slowest:
                continue
            length = lengths[i]
            square = length * length
            left = seconds_of(costs.rates, kind, dealt.work[slowest] - square, dealt.tokens[slowest] - length)
            if left >= least:
                continue
            for p in range(num):
                if p != slowest and dealt.tokens[p] + length <= costs.capacity[kinds[p]]:
                    after = max(
                        left, seconds_of(costs.rates, kinds[p], dealt.work[p] + square, dealt.tokens[p] + length)
                    )
                    if after < least:
                        least, given, taken, to = after, i, NONE, p
            for j in range(len(lengths)):
                p = int(dealt.group_of[j])
                less = length - lengths[j]
                if less <= 0 or p == slowest or dealt.tokens[p] + less > costs.capacity[kinds[p]]:
                    continue
                change = square - lengths[j] * lengths[j]
                after = seconds_of(costs.rates, kind, dealt.work[slowest] - change, dealt.tokens[slowest] - less)
                if after < least:
                    after = max(
                        after, seconds_of(costs.rates, kinds[p], dealt.work[p] + change, dealt.tokens[p] + less)
                    )
                    if after < least:
                        least, given, taken, to = after, i, j, p
        if given < 0:
            if not _divide_again(lengths, kinds, costs, slowest, seconds, dealt):
                break
            continue
        _move(lengths, given, to, dealt)
        if taken >= 0:
            _move(lengths, taken, slowest, dealt)
        for p in (slowest, to):
            seconds[p] = seconds_of(costs.rates, kinds[p], dealt.work[p], dealt.tokens[p])
    found: float = seconds[np.argmax(seconds)]
    return found


@njit(cache=True, no_cpython_wrapper=True)
def _divide_again(
    lengths: Int64Array, kinds: Int64Array, costs: KernelCosts, slowest: int, seconds: Float64Array, dealt: Dealt
) -> bool:
    """Divide the samples of the slowest group and another one as well as possible; False if that helps with none.

    Skips groups that have more than `_MOST_DIVIDED` samples together.
    """
    members = np.empty(_MOST_DIVIDED, dtype=np.int64)
    best_members = np.empty(_MOST_DIVIDED, dtype=np.int64)
    least = seconds[slowest] * (1 - _GAIN)
    best, best_mask, best_num = NONE, NONE, NONE
    for p in range(len(kinds)):
        num = 0
        for i in range(len(lengths)):
            if dealt.group_of[i] == slowest or dealt.group_of[i] == p:
                if num < _MOST_DIVIDED:
                    members[num] = i
                num += 1
        if p == slowest or num > _MOST_DIVIDED:
            continue
        all_tokens, all_work = dealt.tokens[p] + dealt.tokens[slowest], dealt.work[p] + dealt.work[slowest]
        own_tokens = own_work = mask = np.int64(0)
        for step in range(1, 1 << num):  # In Gray code, each step changes one sample's group.
            bit = 0
            while (step >> bit) & 1 == 0:
                bit += 1
            length = lengths[members[bit]]
            sign = 1 - 2 * ((mask >> bit) & 1)
            mask ^= 1 << bit
            own_tokens += sign * length
            own_work += sign * length * length
            rest = all_tokens - own_tokens
            if own_tokens > costs.capacity[kinds[p]] or rest > costs.capacity[kinds[slowest]]:
                continue
            after = max(
                seconds_of(costs.rates, kinds[p], own_work, own_tokens),
                seconds_of(costs.rates, kinds[slowest], all_work - own_work, rest),
            )
            if after < least:
                least, best, best_mask, best_num = after, p, int(mask), num
                copy_to(members, best_members)
    if best < 0:
        return False
    for bit in range(best_num):
        _move(lengths, best_members[bit], best if (best_mask >> bit) & 1 else slowest, dealt)
    for p in (slowest, best):
        seconds[p] = seconds_of(costs.rates, kinds[p], dealt.work[p], dealt.tokens[p])
    return True


@njit(cache=True, no_cpython_wrapper=True)
def _move(lengths: Int64Array, i: int, to: int, dealt: Dealt) -> None:
    length = lengths[i]
    dealt.tokens[dealt.group_of[i]] -= length
    dealt.work[dealt.group_of[i]] -= length * length
    dealt.tokens[to] += length
    dealt.work[to] += length * length
    dealt.group_of[i] = to
