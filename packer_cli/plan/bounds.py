"""Provable lower bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.sorting import count_lengths


def packs_lower_bound(lengths: NDArray[np.int32], capacity: int) -> int:
    """The L2 bound of Martello and Toth (1990): no packing of these lengths needs fewer packs.

    It is at least ceil(sum / capacity), and also counts the samples over half a capacity, which cannot share. For
    every a <= capacity/2: with the lengths over capacity - a, those over capacity/2 up to there, and those from a to
    capacity/2, the third kind fits only beside the second. The bound rises with a up to the next length that there is,
    so only these are looked at. O(n + longest).

    Args:
        lengths: int32[n], each 1 .. capacity.
    """
    if not len(lengths):
        return 0
    count = count_lengths(lengths, int(lengths.max()))
    length = np.flatnonzero(count)
    # Number and sum of the lengths before each place, and after the last.
    count_to = np.concatenate([[0], np.cumsum(count[length])])
    sum_to = np.concatenate([[0], np.cumsum(count[length] * length)])
    half = int(np.searchsorted(length, capacity // 2, side="right"))
    first_alone = np.searchsorted(length, capacity - length[:half], side="right")
    room = (count_to[first_alone] - count_to[half]) * capacity - (sum_to[first_alone] - sum_to[half])
    extra = -(-(sum_to[half] - sum_to[:half] - room) // capacity)
    num_over_half = int(count_to[-1] - count_to[half])
    return max(-(-int(sum_to[-1]) // capacity), num_over_half + int(extra.max(initial=0)))


def least_max_work(falling: NDArray[np.int64], num_ranks: int, capacity: int, linear: int = 0) -> int:
    """However these samples are dealt to the ranks of an iteration, some rank has at least this work.

    Work is the sum of f(s) = s (s + linear): `plan.cost`. The proofs need no more than that f(s), and the work of one
    of its tokens, s + linear, rise with s. Ours; the greatest of three bounds, O(n + ranks log n), 0 without samples:

    1. The mean over the ranks, rounded up, and the work of the longest sample.
    2. While M < f(a) + f(b) for two samples, no rank of at most M work holds both. So with M below that sum for the
       last two of the k longest, these are on k ranks. The others hold at most (ranks - k) capacities, so those k
       hold all other tokens besides. These do least work if they are the shortest: M k is at least the work of
       the k, and of the shortest samples of so many tokens, the last of them in part.
    3. Samples over half a capacity are on ranks of their own, which are filled up at best with the longest that fit.
       So no rank does more than that work, nor more than M, and all of them together do all of it.

    Args:
        falling: int64[n], lengths by falling size, each at most the capacity; their work is below 2^63 in all.
        num_ranks: data-parallel ranks.
        capacity: most tokens of a rank.
        linear: tokens, see `Cost.linear_tokens`.
    """
    if not len(falling):
        return 0
    # Tokens and work of the samples before each place.
    tokens = np.concatenate([[0], np.cumsum(falling)])
    work = np.concatenate([[0], np.cumsum(falling * (falling + linear))])
    mean = -(-int(work[-1]) // num_ranks)
    return max(
        mean,
        int(work[1]),
        _bound_by_longest(falling, tokens, work, num_ranks, capacity, linear),
        _bound_by_room(falling, tokens, work, num_ranks, capacity, linear),
    )


def _bound_by_longest(
    falling: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    num_ranks: int,
    capacity: int,
    linear: int,
) -> int:
    """The second bound of `least_max_work`."""
    k = np.arange(1, min(num_ranks, len(falling)) + 1)
    besides = np.maximum(tokens[-1] - tokens[k] - (num_ranks - k) * capacity, 0)
    # The shortest samples of `besides` tokens: those from a place on, and a part of the one before.
    place = np.searchsorted(tokens, tokens[-1] - besides)
    part = besides - (tokens[-1] - tokens[place])
    least = work[k] + work[-1] - work[place] + part * (falling[np.maximum(place, 1) - 1] + linear)
    bound = -(-least // k)
    bound[1:] = np.minimum(bound[1:], work[2 : len(k) + 1] - work[: len(k) - 1])
    return int(bound.max())


def _bound_by_room(
    falling: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    num_ranks: int,
    capacity: int,
    linear: int,
) -> int:
    """The third bound of `least_max_work`; 0 where the samples do not fit."""
    num_big = int(np.searchsorted(-falling, -(capacity // 2)))
    if num_big > num_ranks:
        return 0
    free = np.full(num_ranks, capacity)
    free[:num_big] -= falling[:num_big]
    # The longest samples in the free tokens: from one that fits alone up to a place, and a part of the next.
    first = np.maximum(num_big, np.searchsorted(-falling, -free))
    last = np.searchsorted(tokens, tokens[first] + free, side="right") - 1
    part = free - (tokens[last] - tokens[first])
    most = work[last] - work[first] + part * np.append(falling + linear, 0)[last]
    most[:num_big] += np.diff(work[: num_big + 1])
    # The ranks that can do least reach their most; the others share what is left.
    most.sort()
    left = work[-1] - np.concatenate([[0], np.cumsum(most)[:-1]])
    share = -(-left // np.arange(num_ranks, 0, -1))
    is_enough = share <= most
    return int(share[np.argmax(is_enough)]) if is_enough.any() else 0
