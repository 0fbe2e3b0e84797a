"""FCP's rounds (arXiv 2602.21788, first called DHP): packs of any degree, and ranks that are left raise degrees.

With packs i, each of at least the degree that it needs, and T_i(c) seconds on c ranks, the paper's program is::

    D[i][j] = min over c of max(D[i-1][j-c], T_i(c))

It has all ranks; here each block has its own, and packs of more ranks than a block keep their degree. The packs of a
step are more than one round holds, of which the paper's public code says nothing: they are cut by falling time into
rounds that take least together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.plan.strategies.dynamic_cp.degrees import BLOCK
from packer_cli.plan.strategies.dynamic_cp.rounds import Rounds, empty_blocks, occupy, place_in_blocks

_CUTS = 8
"""Numbers of packs to try for a round: those that need all ranks, 7/8 of them, ...; the other ranks raise degrees."""
_TRIED = 2**20
"""Packs of a step times ranks times cuts, at most: else fewer cuts are tried."""


def cut_rounds(
    kinds: Int64Array, seconds: Float64Array, degrees: Int64Array, num_ranks: int
) -> tuple[Int64Array, Rounds]:
    """`(degree of each pack int64[p], as an index, rounds)`, one pack a replica and round. O(p ranks BLOCK).

    Args:
        kinds: int64[p], the least degree of each pack, as an index.
        seconds: float64[k, p], of each pack at each degree.
        degrees: int64[k], rising, each at most `num_ranks`.
    """
    order = np.argsort(-seconds[kinds, np.arange(len(kinds))], kind="stable")
    grown = kinds.copy()
    found = Rounds(*np.empty((2, len(kinds)), dtype=np.int64))
    _cut(order, kinds, seconds, degrees, num_ranks, grown, *found)
    return grown, found


@njit(cache=True)
def _cut(
    order: Int64Array,
    kinds: Int64Array,
    seconds: Float64Array,
    degrees: Int64Array,
    num_ranks: int,
    grown: Int64Array,
    round_of: Int64Array,
    first_rank: Int64Array,
) -> None:
    """Write to the last three: the consecutive parts of `order` (int64[p]) whose slowest packs take least together."""
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
            slowest, num_placed = _run(order[begin:end], kinds, seconds, degrees, num_ranks, grown, first_rank)
            last, end = end, begin + num_placed
            if least[begin] + slowest < least[end]:
                least[end], begin_of[end] = least[begin] + slowest, begin
    end, number = num, 0
    while end > 0:
        begin = begin_of[end]
        own = order[begin:end]
        _run(own, kinds, seconds, degrees, num_ranks, grown, first_rank)
        round_of[own] = number
        end, number = begin, number + 1
    for pack in order:  # The slowest round comes first.
        round_of[pack] = number - 1 - round_of[pack]


@njit(cache=True, no_cpython_wrapper=True)
def _run(
    packs: Int64Array,
    kinds: Int64Array,
    seconds: Float64Array,
    degrees: Int64Array,
    num_ranks: int,
    grown: Int64Array,
    first_rank: Int64Array,
) -> tuple[float, int]:
    """Write degrees and places of the first packs, as many as find room; returns `(seconds, packs)`."""
    free = empty_blocks(num_ranks)
    num = 0
    slowest = 0.0
    for pack in packs:
        place = place_in_blocks(free, degrees[kinds[pack]], num_ranks)
        if place < 0:
            break
        occupy(free, place, degrees[kinds[pack]])
        first_rank[pack], grown[pack] = place, kinds[pack]
        num += 1
    in_block, count = np.empty((len(free), BLOCK), dtype=np.int64), np.zeros(len(free), dtype=np.int64)
    for pack in packs[:num]:
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
    for pack in packs[:num]:
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
