"""GreedyFill: fill the free space of long packs with shorter samples, longest first (HBP, algorithm 6).

Written literally it is quadratic. Here the remaining samples are indexed by length, so each placed sample costs one
look-up: O(candidates + placed + capacity).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.length_index import index_add, index_floor, index_remove, make_index


@njit(cache=True)
def greedy_fill(
    room: NDArray[np.int64], lengths: NDArray[np.int32], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose samples for each pack in turn: always the longest that still fits.

    Args:
        room: int64[p], free tokens of each pack.
        lengths: int32[c], lengths of the samples that may be moved, all <= longest.

    Returns:
        `(offsets int64[p+1], chosen int64[a])`: pack k receives the candidates `chosen[offsets[k]:offsets[k+1]]`.
    """
    words, starts = make_index(longest + 1)
    begin = np.zeros(longest + 2, dtype=np.int64)
    for length in lengths:
        begin[length + 1] += 1
        index_add(words, starts, length)
    for length in range(1, longest + 2):
        begin[length] += begin[length - 1]
    place = begin[:-1].copy()
    by_length = np.empty(len(lengths), dtype=np.int64)
    for i in range(len(lengths)):
        by_length[place[lengths[i]]] = i
        place[lengths[i]] += 1

    taken_from = begin[:-1].copy()
    offsets = np.zeros(len(room) + 1, dtype=np.int64)
    chosen = np.empty(len(lengths), dtype=np.int64)
    num_chosen = 0
    for k in range(len(room)):
        free = room[k]
        while free > 0:
            length = index_floor(words, starts, free)
            if length < 0:
                break
            chosen[num_chosen] = by_length[taken_from[length]]
            num_chosen += 1
            taken_from[length] += 1
            if taken_from[length] == begin[length + 1]:
                index_remove(words, starts, length)
            free -= length
        offsets[k + 1] = num_chosen
    return offsets, chosen[:num_chosen].copy()
