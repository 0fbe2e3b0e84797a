"""Megatron-LM's schedulers of packed samples (`megatron/core/datasets`, main of November 2026).

`default_dynamic_cp` forms one round after another. Samples go longest first to the replica, of any degree that holds
them, after which the busiest rank has least work, s^2 / degree each; what would exceed 1.05 times a full pack of the
longest sample's neighbors waits for the next round. `dp_balanced` packs in order of arrival, at one degree.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.strategies.dynamic_cp.rounds import Rounds

_OVER = 1.05
"""Work of a rank, to that of a full pack of samples as long as the round's longest."""


def dynamic_rounds(
    lengths: Int64Array, degrees: Int64Array, capacity: Int64Array, num_ranks: int
) -> tuple[Int64Array, Int64Array, Rounds]:
    """Packs and rounds of a step's samples, one pack a replica and round.

    Ranks that stay empty go to the smallest replicas, each of which then has the next degree. Where that does not
    fill them, all ranks take one pack together; if no degree has as many ranks, some stay idle. O(n replicas rounds).

    Args:
        lengths: int64[n], falling, none above the highest degree's tokens.
        degrees: int64[k], rising, from 1 on.
        capacity: int64[k], tokens of a pack at each degree.

    Returns:
        `(pack of each sample int64[n], degree of each pack int64[p], as an index, rounds)`.
    """
    pack_of, kinds, round_of, first_rank = np.empty((4, len(lengths)), dtype=np.int64)
    num = _dynamic(lengths, degrees, capacity, num_ranks, pack_of, kinds, round_of, first_rank)
    return pack_of, kinds[:num].copy(), Rounds(round_of[:num].copy(), first_rank[:num].copy())


@njit(cache=True)
def _dynamic(
    lengths: Int64Array,
    degrees: Int64Array,
    capacity: Int64Array,
    num_ranks: int,
    pack_of: Int64Array,
    kinds: Int64Array,
    round_of: Int64Array,
    first_rank: Int64Array,
) -> int:
    """Write to the last four; returns the number of packs."""
    waiting = np.arange(len(lengths))
    replica_of = np.empty(len(lengths), dtype=np.int64)
    kind_of, tokens = np.empty((2, num_ranks), dtype=np.int64)
    number = num_packs = 0
    while len(waiting) > 0:
        num, used = _fill(lengths, waiting, degrees, capacity, num_ranks, replica_of, kind_of, tokens)
        num = _use_up(lengths, waiting, degrees, capacity, num_ranks, num, used, replica_of, kind_of)
        place = 0
        for kind in range(len(degrees) - 1, -1, -1):
            for r in range(num):
                if kind_of[r] == kind:
                    kinds[num_packs + r], round_of[num_packs + r] = kind, number
                    first_rank[num_packs + r] = place
                    place += degrees[kind]
        num_left = 0
        for i in range(len(waiting)):
            if replica_of[i] < 0:
                waiting[num_left] = waiting[i]
                num_left += 1
            else:
                pack_of[waiting[i]] = num_packs + replica_of[i]
        waiting = waiting[:num_left]
        num_packs += num
        number += 1
    return num_packs


@njit(cache=True, no_cpython_wrapper=True)
def _fill(
    lengths: Int64Array,
    waiting: Int64Array,
    degrees: Int64Array,
    capacity: Int64Array,
    num_ranks: int,
    replica_of: Int64Array,
    kind_of: Int64Array,
    tokens: Int64Array,
) -> tuple[int, int]:
    """Give samples to replicas, or -1; returns `(replicas, ranks that they use)`."""
    limit = _OVER * lengths[waiting[0]] * capacity[0]
    work = np.zeros(num_ranks)
    num = used = 0
    most = 0.0
    for i in range(len(waiting)):
        length = lengths[waiting[i]]
        best, best_kind, least = -1, -1, np.inf
        for kind in range(len(degrees)):
            if capacity[kind] < length:
                continue
            if num == 0 and best_kind >= 0:
                break  # The longest sample begins at its least degree.
            more = length * length / degrees[kind]
            for r in range(num):
                fits = kind_of[r] == kind and tokens[r] + length <= capacity[kind]
                if fits and max(most, work[r] + more) <= limit and max(most, work[r] + more) < least:
                    best, best_kind, least = r, kind, max(most, work[r] + more)
            if (
                used + degrees[kind] <= num_ranks
                and (num == 0 or max(most, more) <= limit)
                and max(most, more) < least
            ):
                best, best_kind, least = num, kind, max(most, more)
        replica_of[i] = best
        if best < 0:
            continue
        if best == num:
            kind_of[num], tokens[num] = best_kind, 0
            used += degrees[best_kind]
            num += 1
        tokens[best] += length
        work[best] += length * length / degrees[best_kind]
        most = least
    return num, used


@njit(cache=True, no_cpython_wrapper=True)
def _use_up(
    lengths: Int64Array,
    waiting: Int64Array,
    degrees: Int64Array,
    capacity: Int64Array,
    num_ranks: int,
    num: int,
    used: int,
    replica_of: Int64Array,
    kind_of: Int64Array,
) -> int:
    """Give ranks that are left to the smallest replicas, or all to one; returns the number of replicas."""
    while used < num_ranks:
        smallest = 0
        for r in range(1, num):
            if kind_of[r] < kind_of[smallest]:
                smallest = r
        kind = kind_of[smallest]
        if kind + 1 == len(degrees) or used + degrees[kind + 1] - degrees[kind] > num_ranks:
            if degrees[-1] != num_ranks:
                break
            left = capacity[-1]
            for i in range(len(waiting)):
                replica_of[i] = -1
                if lengths[waiting[i]] <= left:
                    replica_of[i] = 0
                    left -= lengths[waiting[i]]
            kind_of[0] = len(degrees) - 1
            return 1
        kind_of[smallest] += 1
        used += degrees[kind + 1] - degrees[kind]
    return num


def packs_of_one_degree(lengths: Int64Array, capacity: int, num_replicas: int) -> Int64Array:
    """Packs (int64[n], rising but for samples that moved) of a step's samples in order of arrival: next fit.

    Then the last samples of the last packs become packs of their own until the replicas divide the packs. Where there
    are too few samples, some replicas stay idle in the last round; Megatron-LM refuses such a step. O(n).

    Args:
        lengths: int64[n], none above `capacity`.

    >>> packs_of_one_degree(np.array([4, 4, 4, 4, 4]), 8, 2).tolist()
    [0, 0, 1, 3, 2]
    """
    pack_of = np.empty(len(lengths), dtype=np.int64)
    _next_fit(lengths, capacity, num_replicas, pack_of)
    return pack_of


@njit(cache=True)
def _next_fit(lengths: Int64Array, capacity: int, num_replicas: int, pack_of: Int64Array) -> None:
    first = np.empty(len(lengths) + 1, dtype=np.int64)
    num, left = 0, 0
    for i in range(len(lengths)):
        if lengths[i] > left:
            first[num] = i
            num, left = num + 1, capacity
        pack_of[i] = num - 1
        left -= lengths[i]
    first[num] = len(lengths)
    pack, last = num - 1, len(lengths) - 1
    while num % num_replicas and pack >= 0:
        if last > first[pack]:
            pack_of[last] = num
            num, last = num + 1, last - 1
        else:
            pack, last = pack - 1, first[pack] - 1
