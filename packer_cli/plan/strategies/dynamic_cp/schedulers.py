"""The rounds of a step as FCP and Megatron-LM form them.

FCP (arXiv 2602.21788, first called DHP) has packs of any degree, and ranks that are left raise degrees. With packs i,
each of at least the degree that it needs, and T_i(c) seconds on c ranks, the paper's program is::

    D[i][j] = min over c of max(D[i-1][j-c], T_i(c))

It has all ranks; here each block has its own, and packs of more ranks than a block keep their degree. The packs of a
step are more than one round holds, of which the paper's public code says nothing: they are cut by falling time into
rounds that take least together.

Megatron-LM (`megatron/core/datasets`, main of November 2026): `default_dynamic_cp` forms one round after another.
Samples go longest first to the replica, of any degree that holds them, after which the busiest rank has least work,
s^2 / degree each; what would exceed 1.05 times a full pack of the longest sample's neighbors waits for the next round.
`dp_balanced` packs in order of arrival, at one degree.
"""

from __future__ import annotations

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.plan.strategies.dynamic_cp.rounds import BLOCK, Rounds, empty_blocks, place_in_blocks


@njit(cache=True)
def pack_by_need(lengths: Int64Array, capacity: Int64Array, shares_rows: bool) -> tuple[Int64Array, Int64Array]:
    """Pack samples by best fit, longest first, each pack at the least degree that holds its longest sample.

    O(n p) for p packs.

    Args:
        lengths: int64[n], falling, none above every capacity.
        capacity: int64[k], tokens of a pack at each degree, rising.
        shares_rows: whether samples also join packs of more than one rank, as in FCP; in ByteScale, a sample of
            several ranks is alone.

    Returns:
        `(pack of each sample int64[n], degree of each pack int64[p], as an index)`.
    """
    pack_of, kinds, room = np.empty((3, len(lengths)), dtype=np.int64)
    num = first = 0
    for i in range(len(lengths)):
        kind = np.searchsorted(capacity, lengths[i])
        if kind > 0 and not shares_rows:
            first = num + 1  # Packs before this one are closed.
        best = -1
        for p in range(first, num):
            if room[p] >= lengths[i] and (best < 0 or room[p] < room[best]):
                best = p
        if best < 0:
            best = num
            kinds[num], room[num] = kind, capacity[kind]
            num += 1
        pack_of[i] = best
        room[best] -= lengths[i]
    return pack_of, kinds[:num].copy()


_CUTS = 8
"""Numbers of packs to try for a round: those that need all ranks, 7/8 of them, ...; the other ranks raise degrees."""
_TRIED = 2**20
"""Packs of a step times ranks times cuts, at most: else fewer cuts are tried."""


@njit(cache=True)
def cut_rounds(
    kinds: Int64Array, seconds: Float64Array, degrees: Int64Array, num_ranks: int
) -> tuple[Int64Array, Rounds]:
    """Return `(degree of each pack int64[p], as an index, rounds)`, one pack a replica and round. O(p ranks BLOCK).

    Rounds are the consecutive parts of the packs by falling time whose slowest ones take least together.

    Args:
        kinds: int64[p], the least degree of each pack, as an index.
        seconds: float64[k, p], of each pack at each degree.
        degrees: int64[k], rising, each at most `num_ranks`.
    """
    own_seconds = np.array([seconds[kinds[pack], pack] for pack in range(len(kinds))])
    order = np.argsort(-own_seconds, kind="mergesort")
    placed = np.empty((2, len(kinds)), dtype=np.int64)
    round_of = np.empty(len(kinds), dtype=np.int64)
    num = len(order)
    cuts = min(_CUTS, max(1, _TRIED // max(1, num * num_ranks)))
    least = np.full(num + 1, np.inf)
    least[0] = 0.0
    begin_of = np.zeros(num + 1, dtype=np.int64)
    for begin in range(num):
        last = num + 1
        for cut in range(cuts, 0, -1):
            if (
                least[begin] == np.inf or last <= begin + 1
            ):  # No round begins here, or there are no fewer packs to try.
                break
            end, needed = begin, 0
            while end < num and (end == begin or (needed + degrees[kinds[order[end]]]) * cuts <= num_ranks * cut):
                needed += degrees[kinds[order[end]]]
                end += 1
            if end == last:
                continue
            slowest, num_placed = _run(order[begin:end], kinds, seconds, degrees, num_ranks, placed)
            last, end = end, begin + num_placed
            if least[begin] + slowest < least[end]:
                least[end], begin_of[end] = least[begin] + slowest, begin
    end, number = num, 0
    while end > 0:
        begin = begin_of[end]
        own = order[begin:end]
        _run(own, kinds, seconds, degrees, num_ranks, placed)
        round_of[own] = number
        end, number = begin, number + 1
    for pack in order:  # The slowest round comes first.
        round_of[pack] = number - 1 - round_of[pack]
    return placed[0], Rounds(round_of, placed[1])


@njit(cache=True, no_cpython_wrapper=True)
def _run(
    own: Int64Array, kinds: Int64Array, seconds: Float64Array, degrees: Int64Array, num_ranks: int, placed: Int64Array
) -> tuple[float, int]:
    """Write degree and first rank of the first of these packs, as many as find room; returns `(seconds, packs)`."""
    grown, first_rank = placed
    free = empty_blocks(num_ranks)
    num = 0
    slowest = 0.0
    for pack in own:
        place = place_in_blocks(free, degrees[kinds[pack]], num_ranks)
        if place < 0:
            break
        first_rank[pack], grown[pack] = place, kinds[pack]
        num += 1
    in_block, count = np.empty((len(free), BLOCK), dtype=np.int64), np.zeros(len(free), dtype=np.int64)
    for pack in own[:num]:
        if degrees[kinds[pack]] <= BLOCK:
            block = first_rank[pack] // BLOCK
            in_block[block, count[block]] = pack
            count[block] += 1
    for block in range(len(free)):
        if count[block]:
            members = in_block[block, : count[block]]
            start = first_rank[members[0]]  # Behind the ranks of a larger replica, if there is one.
            _allot(members, kinds, seconds, degrees, min((block + 1) * BLOCK, num_ranks) - start, grown)
            for pack in members:
                first_rank[pack] = start
                start += degrees[grown[pack]]
    for pack in own[:num]:
        slowest = max(slowest, seconds[grown[pack], pack])
    return slowest, num


@njit(cache=True, no_cpython_wrapper=True)
def _allot(
    packs: Int64Array, kinds: Int64Array, seconds: Float64Array, degrees: Int64Array, num_ranks: int, grown: Int64Array
) -> None:
    """Write the degrees of the packs of a block, which has `num_ranks` for them; of equal answers, the lowest."""
    num = len(packs)
    slowest = np.full((num + 1, num_ranks + 1), np.inf)
    slowest[0, 0] = 0.0
    chosen = np.zeros((num, num_ranks + 1), dtype=np.int64)
    for i in range(num):
        for j in range(num_ranks + 1):
            for kind in range(kinds[packs[i]], len(degrees)):
                if degrees[kind] > j:
                    break
                taken = max(slowest[i, j - degrees[kind]], seconds[kind, packs[i]])
                if taken < slowest[i + 1, j]:
                    slowest[i + 1, j], chosen[i, j] = taken, kind
    j = int(np.argmin(slowest[num]))
    for i in range(num - 1, -1, -1):
        grown[packs[i]] = chosen[i, j]
        j -= degrees[chosen[i, j]]


_OVER_FULL = 1.05
"""Work of a rank, to that of a full pack of samples as long as the round's longest."""


@njit(cache=True)
def dynamic_rounds(
    lengths: Int64Array, degrees: Int64Array, capacity: Int64Array, num_ranks: int
) -> tuple[Int64Array, Int64Array, Rounds]:
    """Form packs and rounds of a step's samples, one pack a replica and round.

    Ranks that stay empty go to the smallest replicas, each of which then has the next degree. Where that does not
    fill them, all ranks take one pack together; if no degree has as many ranks, some stay idle. O(n replicas rounds).

    Args:
        lengths: int64[n], falling, none above the highest degree's tokens.
        degrees: int64[k], rising, from 1 on.
        capacity: int64[k], tokens of a pack at each degree.

    Returns:
        `(pack of each sample int64[n], degree of each pack int64[p], as an index, rounds)`.
    """
    pack_of, kinds, round_of, first_rank, replica_of = np.empty((5, len(lengths)), dtype=np.int64)
    waiting = np.arange(len(lengths))
    number = num_packs = 0
    while len(waiting) > 0:
        own = lengths[waiting]
        kind_of = _fill(own, degrees, capacity, num_ranks, replica_of)
        if not _use_up(degrees, num_ranks, kind_of) and degrees[-1] == num_ranks:
            kind_of = np.full(1, len(degrees) - 1)
            _put_in_one(own, capacity[-1], replica_of)
        num = len(kind_of)
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
    return pack_of, kinds[:num_packs].copy(), Rounds(round_of[:num_packs].copy(), first_rank[:num_packs].copy())


@njit(cache=True, no_cpython_wrapper=True)
def _fill(
    lengths: Int64Array, degrees: Int64Array, capacity: Int64Array, num_ranks: int, replica_of: Int64Array
) -> Int64Array:
    """Give samples to replicas, or -1; return the degree (int64[r]) of each replica, as an index."""
    limit = _OVER_FULL * lengths[0] * capacity[0]
    kind_of, tokens = np.empty((2, num_ranks), dtype=np.int64)
    work = np.zeros(num_ranks)
    num = used = 0
    most = 0.0
    for i in range(len(lengths)):
        length = lengths[i]
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
    return kind_of[:num]


@njit(cache=True, no_cpython_wrapper=True)
def _use_up(degrees: Int64Array, num_ranks: int, kind_of: Int64Array) -> bool:
    """Give ranks that are left to the smallest replicas; return whether none is left then."""
    used = degrees[kind_of].sum()
    while used < num_ranks:
        smallest = np.argmin(kind_of)
        kind = kind_of[smallest]
        if kind + 1 == len(degrees) or used + degrees[kind + 1] - degrees[kind] > num_ranks:
            return False
        kind_of[smallest] += 1
        used += degrees[kind + 1] - degrees[kind]
    return True


@njit(cache=True, no_cpython_wrapper=True)
def _put_in_one(lengths: Int64Array, room: int, replica_of: Int64Array) -> None:
    """Give the samples that have room to one replica, and none to others."""
    for i in range(len(lengths)):
        replica_of[i] = -1
        if lengths[i] <= room:
            replica_of[i] = 0
            room -= lengths[i]
