"""Provable lower bounds on packs and on work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.sorting import count_lengths


def packs_lower_bound(lengths: NDArray[np.int32], capacity: int) -> int:
    """The L2 bound of Martello and Toth (1990): no packing of these lengths needs fewer packs.

    It is at least ceil(sum / capacity), and also counts the samples over half a capacity, which cannot share a pack.
    For every a <= capacity/2, take three kinds of lengths: over capacity - a, from capacity/2 to capacity - a, and
    from a to capacity/2. The third kind fits only beside the second. The bound increases with a up to the next
    existing length, so only existing lengths are tried. O(n + longest).

    Args:
        lengths: int32[n], each 1 .. capacity.
    """
    if not len(lengths):
        return 0
    count = count_lengths(lengths, int(lengths.max()))
    length = np.flatnonzero(count)
    # Number and sum of the lengths before each index, and of all.
    count_to = np.concatenate([[0], np.cumsum(count[length])])
    sum_to = np.concatenate([[0], np.cumsum(count[length] * length)])
    half = int(np.searchsorted(length, capacity // 2, side="right"))
    first_alone = np.searchsorted(length, capacity - length[:half], side="right")
    room = (count_to[first_alone] - count_to[half]) * capacity - (sum_to[first_alone] - sum_to[half])
    extra = -(-(sum_to[half] - sum_to[:half] - room) // capacity)
    num_over_half = int(count_to[-1] - count_to[half])
    return max(-(-int(sum_to[-1]) // capacity), num_over_half + int(extra.max(initial=0)))


def least_max_work(decreasing: NDArray[np.int64], num_ranks: int, capacity: int, linear: int = 0) -> int:
    """A lower bound on the greatest work of a rank, however an iteration's samples are dealt to its ranks.

    Work is the sum of f(s) = s (s + linear), see `plan.cost`. The proofs only need that f(s), and the work per token,
    s + linear, increase with s. Our own: the greatest of three bounds, 0 without samples. Price: O(n + ranks log n).

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
    if not len(decreasing):
        return 0
    # Tokens and work of the samples before each index.
    tokens = np.concatenate([[0], np.cumsum(decreasing)])
    work = np.concatenate([[0], np.cumsum(decreasing * (decreasing + linear))])
    mean = -(-int(work[-1]) // num_ranks)
    return max(
        mean,
        int(work[1]),
        _bound_by_longest(decreasing, tokens, work, num_ranks, capacity, linear),
        _bound_by_room(decreasing, tokens, work, num_ranks, capacity, linear),
    )


def _bound_by_longest(
    decreasing: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    num_ranks: int,
    capacity: int,
    linear: int,
) -> int:
    """The second bound of `least_max_work`."""
    k = np.arange(1, min(num_ranks, len(decreasing)) + 1)
    besides = np.maximum(tokens[-1] - tokens[k] - (num_ranks - k) * capacity, 0)
    # The shortest samples of `besides` tokens: those from `first` on, and a part of the one before.
    first = np.searchsorted(tokens, tokens[-1] - besides)
    part = besides - (tokens[-1] - tokens[first])
    least = work[k] + work[-1] - work[first] + part * (decreasing[np.maximum(first, 1) - 1] + linear)
    bound = -(-least // k)
    bound[1:] = np.minimum(bound[1:], work[2 : len(k) + 1] - work[: len(k) - 1])
    return int(bound.max())


def _bound_by_room(
    decreasing: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    num_ranks: int,
    capacity: int,
    linear: int,
) -> int:
    """The third bound of `least_max_work`; 0 if the samples do not fit."""
    num_big = int(np.searchsorted(-decreasing, -(capacity // 2)))
    if num_big > num_ranks:
        return 0
    free = np.full(num_ranks, capacity)
    free[:num_big] -= decreasing[:num_big]
    # The longest samples that fit the free tokens: those from `first` to `last`, and a part of the next.
    first = np.maximum(num_big, np.searchsorted(-decreasing, -free))
    last = np.searchsorted(tokens, tokens[first] + free, side="right") - 1
    part = free - (tokens[last] - tokens[first])
    most = work[last] - work[first] + part * np.append(decreasing + linear, 0)[last]
    most[:num_big] += np.diff(work[: num_big + 1])
    # The ranks that can do the least reach their limit; the others share the remaining work.
    most.sort()
    left = work[-1] - np.concatenate([[0], np.cumsum(most)[:-1]])
    share = -(-left // np.arange(num_ranks, 0, -1))
    is_enough = share <= most
    return int(share[np.argmax(is_enough)]) if is_enough.any() else 0
