"""The degrees of context parallelism, packs of samples that each need one, and which packs run side by side.

Every GPU may belong to a limited number of process groups. So degrees up to `BLOCK` are any integers, and their
replicas stay inside blocks of as many ranks: a rank is then in at most 19 of them. Higher degrees are powers of two,
and the highest one; Megatron-LM's are all so. Where tensor parallelism divides the model, a *rank* is the GPUs that
hold it once.

In a *round*, replicas of unlike degrees divide the ranks. ByteScale (arXiv 2502.21231, section 6) sorts the sequences
of a step by falling length, and gives the next ones to the ranks that are more than delta behind the slowest, so that
ranks run different numbers of them. Its ranks change their groups one by one. Here, all ranks meet where the groups
change: a round ends when no replica that lags can take more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array, Int64Array

BLOCK = 8
"""Ranks of a block."""


def any_degree(highest: int) -> list[int]:
    """Below the highest, which is left out, in rising order.

    >>> any_degree(40)
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    """
    return [*range(1, min(highest, BLOCK + 1)), *(d for d in powers_of_two(highest) if d > BLOCK)]


def powers_of_two(highest: int) -> list[int]:
    """Likewise.

    >>> powers_of_two(8)
    [1, 2, 4]
    """
    return [2**k for k in range((highest - 1).bit_length())]


def groups_of_degrees(given: Sequence[Group], degrees: Sequence[int]) -> tuple[Group, ...]:
    """The longest group, with context parallelism, and one for each lower degree that holds less.

    A rank holds as many tokens as in the given group in which it holds most.
    """
    longest = given[-1]
    on_a_rank = max(-(-group.capacity // group.layout.row_ranks) for group in given)
    longest = replace(longest, sp_size=1, cp_size=longest.layout.row_ranks)
    lower = [d for d in degrees if on_a_rank * d < longest.capacity]
    return (*(replace(longest, capacity=on_a_rank * d, cp_size=d) for d in lower), longest)


@njit(cache=True)
def pack_by_need(lengths: Int64Array, capacity: Int64Array, shares_rows: bool) -> tuple[Int64Array, Int64Array]:
    """Packs of samples: best fit, longest first, each pack at the least degree that holds its longest sample.

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


_DELTAS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of the slowest replica's seconds by which another one lags; that stays by which a step is fastest. ByteScale
prints none."""
_OVER = 1.05
"""To these seconds, how many a replica may have that takes more."""


class Rounds(NamedTuple):
    """The rounds of p packs; those of a replica are in the order of the packs."""

    round: Int64Array
    """int64[p], from 0 on, none empty."""
    first_rank: Int64Array
    """int64[p]: first rank of the replica, of which all packs in a round have one degree."""


def form_rounds(
    degrees: Int64Array, kinds: Int64Array, seconds: Float64Array, num_ranks: int, *, is_one: bool
) -> Rounds:
    """Rounds of packs, the slowest first. O(p (p + k + ranks)).

    A round begins with the slowest pack that is left, then the slowest one whose degree still fits a block, until the
    ranks are divided. Of the blocks, the emptiest one takes a replica. Then the replica that is farthest behind gets
    the slowest pack of its degree that does not take it far beyond the others.

    Args:
        degrees: int64[k], rising, each at most `num_ranks`.
        kinds: int64[p], degree of each pack, as an index.
        seconds: float64[p], of each pack at its degree.
        is_one: whether a replica runs one pack in a round, as where all GPUs run in lockstep.
    """
    order = np.lexsort((-seconds, kinds))
    begins = np.searchsorted(kinds[order], np.arange(len(degrees) + 1))
    best, least = None, np.inf
    for delta in (1.0,) if is_one else _DELTAS:
        found, total = _form(degrees, order, begins, seconds, num_ranks, delta)
        if total < least:
            best, least = found, total
    assert best is not None
    return best


@njit(cache=True)
def _form(
    degrees: Int64Array, order: Int64Array, begins: Int64Array, seconds: Float64Array, num_ranks: int, delta: float
) -> tuple[Rounds, float]:
    """The rounds of the packs, and their seconds together.

    Args:
        order: int64[p], packs by degree, then falling seconds.
        begins: int64[k+1], where each degree begins.
        delta: 1 where a replica takes no second pack.
    """
    at = begins[:-1].copy()
    round_of, first_rank = np.empty((2, len(order)), dtype=np.int64)
    is_taken = np.zeros(len(order), dtype=np.bool_)
    replica_kind, replica_first = np.empty((2, num_ranks), dtype=np.int64)
    load = np.empty(num_ranks)
    done = number = 0
    total = 0.0
    while done < len(order):
        free = empty_blocks(num_ranks)
        num = 0
        slowest = 0.0
        while True:
            kind, first = -1, -1
            for k in range(len(degrees)):
                while at[k] < begins[k + 1] and is_taken[at[k]]:
                    at[k] += 1
                if at[k] < begins[k + 1] and (kind < 0 or seconds[order[at[k]]] > seconds[order[at[kind]]]):
                    place = place_in_blocks(free, degrees[k], num_ranks)
                    if place >= 0:
                        kind, first = k, place
            if kind < 0:
                break
            occupy(free, first, degrees[kind])
            pack = order[at[kind]]
            is_taken[at[kind]] = True
            round_of[pack], first_rank[pack] = number, first
            replica_kind[num], replica_first[num], load[num] = kind, first, seconds[pack]
            slowest = max(slowest, seconds[pack])
            num += 1
            done += 1
        # The last packs of a step, all of one degree, need not wait for another round.
        last = replica_kind[0]
        takes_all = delta < 1 and (replica_kind[:num] == last).all()
        takes_all &= done + (~is_taken[at[last] : begins[last + 1]]).sum() == len(order)
        while True:
            lagging, next_one = -1, -1
            for r in range(num):
                if lagging >= 0 and load[r] >= load[lagging]:
                    continue
                k = replica_kind[r]
                if not takes_all and load[r] >= slowest * (1 - delta):
                    continue
                for each in range(at[k], begins[k + 1]):
                    if not is_taken[each] and (takes_all or load[r] + seconds[order[each]] <= slowest * _OVER):
                        lagging, next_one = r, each
                        break
            if lagging < 0:
                break
            pack = order[next_one]
            is_taken[next_one] = True
            round_of[pack], first_rank[pack] = number, replica_first[lagging]
            load[lagging] += seconds[pack]
            slowest = max(slowest, load[lagging])
            done += 1
        total += slowest
        number += 1
    return Rounds(round_of, first_rank), total


@njit(cache=True, no_cpython_wrapper=True)
def empty_blocks(num_ranks: int) -> Int64Array:
    """Free ranks of each block."""
    free = np.full(-(-num_ranks // BLOCK), BLOCK)
    free[-1] -= len(free) * BLOCK - num_ranks
    return free


@njit(cache=True, no_cpython_wrapper=True)
def place_in_blocks(free: Int64Array, degree: int, num_ranks: int) -> int:
    """First rank of a replica: behind others in the emptiest block, or in blocks of its own; -1 without room."""
    best = -1
    if degree <= BLOCK:
        for b in range(len(free)):
            if free[b] >= degree and (best < 0 or free[b] > free[best]):
                best = b
        return -1 if best < 0 else min(best * BLOCK + BLOCK, num_ranks) - free[best]
    num_blocks, stride = -(-degree // BLOCK), 1
    while stride < num_blocks:
        stride *= 2
    for b in range(0, len(free) - num_blocks + 1, stride):
        taken = 0
        for each in range(b, b + num_blocks):
            taken += min(BLOCK, num_ranks - each * BLOCK) - free[each]
        if taken == 0 and b * BLOCK + degree <= num_ranks:
            return b * BLOCK
    return -1


@njit(cache=True, no_cpython_wrapper=True)
def occupy(free: Int64Array, first: int, degree: int) -> None:
    """Take a replica's ranks."""
    left = degree
    for b in range(first // BLOCK, len(free)):
        taken = min(left, free[b])
        free[b] -= taken
        left -= taken
        if left == 0:
            break
