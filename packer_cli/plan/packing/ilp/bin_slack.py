"""Minimum bin slack: each pack takes the longest sample left, and the samples that best fill the rest of it.

Source: Gupta and Ho 1999; with the longest sample fixed, MBS' of Fleszar and Hindi 2002. Price: a depth-first search
for each pack, which ends at the first choice that fills it to the token; among many short samples that is the first or
second choice, and a million samples take a twentieth of a second. If every pack can be filled, it saves the last packs
between best-fit and the bound; if not, it uses up the good matches first and needs more packs than best-fit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.csr import argsort_descending, count_lengths
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import (
    LengthIndex,
    index_add,
    index_ceiling,
    index_floor,
    index_remove,
    make_index,
)

_MOST_NODES = 5_000
"""Samples to try for one pack before taking the best choice so far: usually a tenth of a millisecond."""
_MOST_OF_ALL = 50_000_000
"""Samples to try for all packs, beyond their best choices: a bound on the time if no pack can be filled."""


def min_bin_slack(lengths: Int32Array, capacity: int) -> tuple[Int64Array, Int32Array]:
    """Return packs `(offsets int64[p+1], members int32[n])` of the lengths (int32[n], each 1 .. capacity)."""
    taken, offsets = _min_bin_slack(count_lengths(lengths), capacity)
    members = np.empty_like(taken)
    members[argsort_descending(taken)] = argsort_descending(lengths)
    return offsets, members


@njit(cache=True)
def _min_bin_slack(counts: Int64Array, capacity: int) -> tuple[Int32Array, Int64Array]:
    """Return `(taken int32[n], offsets int64[p+1])`: pack k has samples of lengths `taken[offsets[k]:offsets[k+1]]`.

    Args:
        counts: int64[longest + 1], samples of each length; zeros afterwards.
    """
    index = make_index(len(counts))
    for value in np.flatnonzero(counts):
        index_add(index, value)
    num = counts.sum()
    taken = np.empty(num, dtype=np.int32)
    offsets = np.zeros(num + 1, dtype=np.int64)
    chosen = np.empty(num, dtype=np.int64)
    num_packs = begin = 0
    spare = _MOST_OF_ALL
    while begin < num:
        shortest = index_ceiling(index, np.int64(1))
        room = limit = capacity
        least = capacity + 1
        level = nodes = num_best = 0
        while limit >= shortest:
            # Down: always the longest that fits and is no longer than the one before.
            length = index_floor(index, limit)
            while length > 0:
                _take(index, counts, length)
                chosen[level] = length
                level += 1
                nodes += 1
                room -= length
                limit = min(length, room)
                length = index_floor(index, limit)
            if room < least:
                least = room
                num_best = level
                for i in range(level):
                    taken[begin + i] = chosen[i]
            limit = 0
            # Up, to the last sample whose place a shorter one can take and leave room for another.
            while level > 1 and limit < shortest and least > 0 and nodes <= min(_MOST_NODES, spare):
                level -= 1
                _put(index, counts, chosen[level])
                room += chosen[level]
                limit = min(chosen[level] - 1, room - shortest)
        # Only nodes beyond the best choice's own samples count as search.
        spare -= nodes - num_best
        for i in range(level):
            _put(index, counts, chosen[i])
        for i in range(begin, begin + num_best):
            _take(index, counts, np.int64(taken[i]))
        begin += num_best
        num_packs += 1
        offsets[num_packs] = begin
    return taken, offsets[: num_packs + 1].copy()


@njit(cache=True, no_cpython_wrapper=True)
def _take(index: LengthIndex, counts: Int64Array, length: int) -> None:
    counts[length] -= 1
    if counts[length] == 0:
        index_remove(index, length)


@njit(cache=True, no_cpython_wrapper=True)
def _put(index: LengthIndex, counts: Int64Array, length: int) -> None:
    if counts[length] == 0:
        index_add(index, length)
    counts[length] += 1
