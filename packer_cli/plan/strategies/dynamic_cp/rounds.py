"""The degrees of context parallelism, and which packs run side by side at theirs.

Every GPU may belong to a limited number of process groups. So degrees up to `BLOCK` are any integers, and their
replicas stay inside blocks of as many ranks: a rank is then in at most 19 of them. Higher degrees are powers of two,
and the highest one; Megatron-LM's are all so. Where tensor parallelism divides the model, a *rank* is the GPUs that
hold it once.

In a *round*, replicas of unlike degrees divide the ranks. Where all GPUs run in lockstep, each replica runs one pack
in a round. Else ranks change their replicas one by one (`place_freely`): ByteScale (arXiv 2502.21231, section 6) sorts
the sequences of a step by falling length, and gives the next ones to the ranks that are more than delta behind the
slowest, so that ranks run different numbers of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.types import Float64Array, Int64Array

BLOCK = 8
"""Ranks of a block."""


def any_degree(highest: int) -> list[int]:
    """List all degrees up to a block and powers of two above, below the highest, in rising order.

    >>> any_degree(40)
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    """
    return [*range(1, min(highest, BLOCK + 1)), *(d for d in powers_of_two(highest) if d > BLOCK)]


def powers_of_two(highest: int) -> list[int]:
    """List the powers of two below the highest degree, in rising order.

    >>> powers_of_two(8)
    [1, 2, 4]
    """
    return [2**k for k in range((highest - 1).bit_length())]


class Rounds(NamedTuple):
    """The rounds of p packs; those of a replica are in the order of the packs."""

    round: Int64Array
    """int64[p], from 0 on, none empty."""
    first_rank: Int64Array
    """int64[p]: first rank of the replica, of which all packs in a round have one degree."""


@njit(cache=True)
def form_rounds(degrees: Int64Array, kinds: Int64Array, seconds: Float64Array, num_ranks: int) -> Rounds:
    """Form rounds of packs, one a replica, the slowest first. O(p rounds blocks).

    A round begins with the slowest pack that is left, then the slowest one whose degree still fits a block, until the
    ranks are divided. Of the blocks, the emptiest one takes a replica.

    Args:
        degrees: int64[k], rising, each at most `num_ranks`.
        kinds: int64[p], degree of each pack, as an index.
        seconds: float64[p], of each pack at its degree.
    """
    order = np.argsort(-seconds, kind="mergesort")
    round_of, first_rank = np.empty((2, len(order)), dtype=np.int64)
    number = 0
    while len(order):
        free = empty_blocks(num_ranks)
        for pack in order:
            first_rank[pack] = place_in_blocks(free, degrees[kinds[pack]], num_ranks)
            round_of[pack] = number
        order = order[first_rank[order] < 0]
        number += 1
    return Rounds(round_of, first_rank)


@njit(cache=True)
def place_freely(order: Int64Array, degree: Int64Array, seconds: Float64Array, num_ranks: int) -> Int64Array:
    """Place packs where replicas meet at the end of a step alone; return each one's first rank (int64[p]).

    O(p ranks BLOCK).

    One after another, packs go where they begin first: the ranks that are behind get the next one. Of equal places,
    the one whose ranks wait least.

    Args:
        order: int64[p], the packs as they are dealt.
        degree: int64[p], of each.
        seconds: float64[p], of each.
    """
    ready = np.zeros(num_ranks)
    first_rank = np.empty(len(order), dtype=np.int64)
    for pack in order:
        size = degree[pack]
        stride = 1 if size <= BLOCK else 2 ** int(np.ceil(np.log2(size)))
        least = waits = np.inf
        for first in range(0, num_ranks - size + 1, stride):
            if size <= BLOCK and first % BLOCK + size > BLOCK:
                continue
            own = ready[first : first + size]
            begin = own.max()
            if begin < least or (begin == least and size * begin - own.sum() < waits):
                least, waits, first_rank[pack] = begin, size * begin - own.sum(), first
        ready[first_rank[pack] : first_rank[pack] + size] = least + seconds[pack]
    return first_rank


@njit(cache=True)
def rounds_between(order: Int64Array, degree: Int64Array, first_rank: Int64Array, num_ranks: int) -> Int64Array:
    """Give packs that ranks run in this order their rounds (int64[p]), as few as can be. O(p ranks of a replica).

    A replica that runs several packs before its ranks change does so in as many rounds as those of others allow, so
    that few ranks are without a pack in a round.

    Args:
        order: int64[p], the packs as they are dealt.
        degree, first_rank: int64[p], of each.
    """
    last = np.full(num_ranks, -1)  # The latest pack of each rank.
    begin, place = np.zeros((2, len(degree) + 1), dtype=np.int64)  # Of each run of a replica; in the run.
    begin[-1] = -1  # Before a rank's first pack.
    for pack in order:
        own = last[first_rank[pack] : first_rank[pack] + degree[pack]]
        before = own[0]
        if before >= 0 and degree[before] == degree[pack] and (own == before).all():
            begin[pack], place[pack] = begin[before], place[before] + 1
        else:
            begin[pack] = begin[own].max() + 1
        own[:] = pack
    end = np.full(num_ranks, begin.max() + 1)
    round_of = np.empty(len(degree), dtype=np.int64)
    for pack in order[::-1]:
        own = end[first_rank[pack] : first_rank[pack] + degree[pack]]
        round_of[pack] = min(begin[pack] + place[pack], own.min() - 1)
        if place[pack] == 0:
            own[:] = begin[pack]
    return round_of


@njit(cache=True, no_cpython_wrapper=True)
def empty_blocks(num_ranks: int) -> Int64Array:
    """Free ranks of each block."""
    free = np.full(-(-num_ranks // BLOCK), BLOCK)
    free[-1] -= len(free) * BLOCK - num_ranks
    return free


@njit(cache=True, no_cpython_wrapper=True)
def place_in_blocks(free: Int64Array, degree: int, num_ranks: int) -> int:
    """Take a replica's ranks; return the first: behind others in the emptiest block, or in blocks of its own.

    -1 without room.
    """
    best = -1
    if degree <= BLOCK:
        for b in range(len(free)):
            if free[b] >= degree and (best < 0 or free[b] > free[best]):
                best = b
        if best < 0:
            return -1
        first: int = min(best * BLOCK + BLOCK, num_ranks) - free[best]
        free[best] -= degree
        return first
    num_blocks, stride = -(-degree // BLOCK), 1
    while stride < num_blocks:
        stride *= 2
    for b in range(0, len(free) - num_blocks + 1, stride):
        taken = 0
        for each in range(b, b + num_blocks):
            taken += min(BLOCK, num_ranks - each * BLOCK) - free[each]
        if taken == 0 and b * BLOCK + degree <= num_ranks:
            left = degree
            for each in range(b, b + num_blocks):
                taken = min(left, free[each])
                free[each] -= taken
                left -= taken
            return b * BLOCK
    return -1
