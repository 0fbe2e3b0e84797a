"""The degrees of context parallelism, and packs of samples that each need one.

Every GPU may belong to a limited number of process groups. So degrees up to `BLOCK` are any integers, and their
replicas stay inside blocks of as many ranks: a rank is then in at most 19 of them. Higher degrees are powers of two,
and the highest one; Megatron-LM's are all so. Where tensor parallelism divides the model, a *rank* is the GPUs that
hold it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Int64Array

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


def pack_by_need(lengths: Int64Array, capacity: Int64Array, *, shares_rows: bool) -> tuple[Int64Array, Int64Array]:
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
    pack_of, kinds = np.empty((2, len(lengths)), dtype=np.int64)
    num = _pack_by_need(lengths, capacity, shares_rows, pack_of, kinds)
    return pack_of, kinds[:num].copy()


@njit(cache=True)
def _pack_by_need(
    lengths: Int64Array, capacity: Int64Array, shares_rows: bool, pack_of: Int64Array, kinds: Int64Array
) -> int:
    """Write to `pack_of` and `kinds`; returns the number of packs."""
    room = np.empty(len(lengths), dtype=np.int64)
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
    return num
