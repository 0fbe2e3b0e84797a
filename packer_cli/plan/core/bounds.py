"""Provable lower bounds on packs and on work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.csr import count_lengths, first_over, num_at_least
from packer_cli.plan.core.groups import UNLIMITED, limits_of
from packer_cli.plan.core.types import Int32Array, Int64Array, Plan


def packs_lower_bound(lengths: NDArray[np.integer], capacity: int) -> int:
    """Compute the L2 bound of Martello and Toth (1990): no packing of these lengths needs fewer packs.

    It is at least ceil(sum / capacity), and also counts the samples over half a capacity, which cannot share a pack.
    For every a <= capacity/2, take three kinds of lengths: over capacity - a, from capacity/2 to capacity - a, and
    from a to capacity/2. The third kind fits only beside the second. The bound increases with a up to the next
    existing length, so only existing lengths are tried. O(n + longest).

    Args:
        lengths: int[n], each 1 .. capacity.
    """
    count = count_lengths(lengths)
    falling = np.flatnonzero(count)[::-1].copy()
    return int(bound_of_runs(falling, count[falling], capacity))


@njit(cache=True)
def bound_of_runs(falling: Int64Array, number: Int64Array, capacity: int) -> int:
    """Compute `packs_lower_bound` of these lengths, each so many times (int64[r] both). O(r)."""
    # Number and sum of the lengths before each place, and of all.
    number_to, sum_to = np.zeros(len(falling) + 1, dtype=np.int64), np.zeros(len(falling) + 1, dtype=np.int64)
    half = 0
    for i in range(len(falling)):
        number_to[i + 1], sum_to[i + 1] = number_to[i] + number[i], sum_to[i] + number[i] * falling[i]
        half += falling[i] > capacity // 2
    over_half = number_to[half]
    least: int = max(over_half, -(-sum_to[-1] // capacity))
    alone = half
    for i in range(half, len(falling)):
        while alone > 0 and falling[alone - 1] <= capacity - falling[i]:
            alone -= 1
        room = (over_half - number_to[alone]) * capacity - (sum_to[half] - sum_to[alone])
        least = max(least, over_half - (-(sum_to[i + 1] - sum_to[half] - room) // capacity))
    return least


def bound_of_needs(plan: Plan, group: int, pieces: Int32Array) -> int:
    """Return a lower bound on the packs of a group's pieces by their needs besides tokens; 0 without such."""
    limits = limits_of(plan.groups[group].capacity, plan.limits)
    found = [
        packs_lower_bound(need[pieces], most)
        for need, most in zip(plan.pieces.needs[1:], limits[1:], strict=True)
        if most < UNLIMITED
    ]
    return max(found, default=0)


def least_max_work(decreasing: Int64Array, num_ranks: int, capacity: int, linear: int = 0) -> int:
    """Return a lower bound on the greatest work of a rank, however an iteration's samples are dealt to its ranks.

    Work is the sum of f(s) = s (s + linear), see `plan.core.cost`. The proofs only need that f(s), and the work per
    token, s + linear, increase with s. Our own: the greatest of three bounds, 0 without samples.
    Price: O(n + ranks log n).

    1. The mean over the ranks, rounded up, and the work of the longest sample.
    2. If M < f(a) + f(b) for two samples, no rank with at most M work holds both. So if M is below that sum for the
       last two of the k longest samples, these are on k ranks. The other ranks hold at most (ranks - k) capacities, so
       these k ranks also hold all remaining tokens. Those do the least work if they are the shortest: M k is at least
       the work of the k samples plus that of the shortest samples with so many tokens, one of them in part.
    3. Samples over half a capacity are on ranks of their own, which at best are filled with the longest samples that
       fit. So no rank does more than that work, nor more than M, and together they do all of the work.

    Args:
        decreasing: int64[n], the lengths, each at most the capacity; their total work is below 2^63.
        num_ranks: data-parallel ranks.
        capacity: most tokens of a rank.
        linear: tokens, see `Cost.linear_tokens`.
    """
    whole = np.array([0, len(decreasing)])
    return int(least_max_works(decreasing, whole, np.array([num_ranks]), np.array([capacity]), linear)[0])


def least_max_works(
    decreasing: Int64Array, first: Int64Array, num_ranks: Int64Array, capacity: Int64Array, linear: int
) -> Int64Array:
    """Return `least_max_work` of many iterations (int64[i]); iteration j's lengths are `first[j] .. first[j + 1] - 1`.

    Args:
        decreasing: int64[n], the lengths of each iteration.
        first: int64[i+1]
        num_ranks, capacity: int64[i]
    """
    least = np.empty(len(num_ranks), dtype=np.int64)
    # Arrays of a kernel's own take longer to compile than all else in it.
    scratch = np.empty((3, int(np.diff(first).max(initial=0)) + 1), dtype=np.int64)
    _least_max_works(decreasing, first, num_ranks, capacity, linear, scratch, least)
    return least


class _Iteration(NamedTuple):
    """The samples of one iteration, and what it runs on."""

    lengths: Int64Array
    """int64, of all iterations, decreasing within each."""
    begin: int
    num: int
    tokens: Int64Array
    """int64[num + 1] or more: of the samples before each place."""
    work: Int64Array
    """int64[num + 1] or more: likewise."""
    num_ranks: int
    capacity: int
    linear: int


@njit(cache=True)
def _least_max_works(
    decreasing: Int64Array,
    first: Int64Array,
    num_ranks: Int64Array,
    capacity: Int64Array,
    linear: int,
    scratch: Int64Array,
    least: Int64Array,
) -> None:
    """Write to `least`; `scratch` is int64[3, most samples + 1]."""
    tokens, work, most = scratch[0], scratch[1], scratch[2]
    for i in range(len(least)):
        own = _Iteration(
            decreasing, first[i], first[i + 1] - first[i], tokens, work, num_ranks[i], capacity[i], linear
        )
        tokens[0] = work[0] = 0
        for j in range(own.num):
            length = decreasing[own.begin + j]
            tokens[j + 1] = tokens[j] + length
            work[j + 1] = work[j] + length * (length + linear)
        bound = (work[own.num] + num_ranks[i] - 1) // num_ranks[i]
        if own.num and work[1] > bound:
            bound = work[1]
        least[i] = _bound_by_room(own, most, _bound_by_longest(own, bound))


@njit(cache=True, no_cpython_wrapper=True)
def _bound_by_longest(own: _Iteration, greatest: int) -> int:
    """Return the second bound of `least_max_work`, or `greatest` if that is more."""
    num, tokens, work = own.num, own.tokens, own.work
    for k in range(1, min(own.num_ranks, num) + 1):
        # The shortest samples of `besides` tokens: those from `last` on, and a part of the one before.
        besides = tokens[num] - tokens[k] - (own.num_ranks - k) * own.capacity
        least = work[k]
        if besides > 0:
            last = first_over(tokens, k, num, tokens[num] - besides - 1)
            part = besides - (tokens[num] - tokens[last])
            least += work[num] - work[last] + part * (own.lengths[own.begin + last - 1] + own.linear)
        bound = (least + k - 1) // k
        if k > 1 and work[k] - work[k - 2] < bound:
            bound = work[k] - work[k - 2]
        if bound > greatest:
            greatest = bound
    return greatest


@njit(cache=True, no_cpython_wrapper=True)
def _bound_by_room(own: _Iteration, most: Int64Array, greatest: int) -> int:
    """Return the third bound of `least_max_work`, or `greatest` if that is more or the samples do not fit."""
    num, tokens, work = own.num, own.tokens, own.work
    num_big = 0
    while num_big < num and 2 * own.lengths[own.begin + num_big] > own.capacity:
        num_big += 1
    if num_big > own.num_ranks:
        return greatest
    # The most work of each rank that has a big sample, and of each other one.
    for rank in range(num_big + 1):
        free = own.capacity
        most[rank] = 0
        if rank < num_big:
            length = own.lengths[own.begin + rank]
            free -= length
            most[rank] = length * (length + own.linear)
        # The longest samples that fit the free tokens: those from `low` to `last`, and a part of the next.
        low = num_big + num_at_least(own.lengths[own.begin + num_big : own.begin + num], free + 1)
        last = first_over(tokens, low, num + 1, tokens[low] + free) - 1
        most[rank] += work[last] - work[low]
        if last < num:
            most[rank] += (free - (tokens[last] - tokens[low])) * (own.lengths[own.begin + last] + own.linear)
    # Ranks that can do less than their share do what they can, and the others share the remaining work.
    left, others = work[num], own.num_ranks
    while others > 0:
        share = (left + others - 1) // others
        num_limited = 0
        for rank in range(num_big + 1):
            if 0 <= most[rank] < share:
                alike = 1 if rank < num_big else own.num_ranks - num_big
                left -= alike * most[rank]
                num_limited += alike
                most[rank] = -1
        if num_limited == 0:
            return share if share > greatest else greatest
        others -= num_limited
    return greatest
