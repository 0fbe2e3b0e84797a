"""Minimum bin slack: each pack takes the longest sample left, and the samples that best fill the rest of it.

Source: Gupta and Ho 1999; with the longest sample fixed, MBS' of Fleszar and Hindi 2002. Price: a depth-first search
for each pack, which ends at the first choice that fills it to the token; among many short samples that is the first or
second choice, and a million samples take a twentieth of a second. If every pack can be filled, it saves the last packs
between best-fit and the bound; if not, it uses up the good matches first and needs more packs than best-fit.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.kernels.length_index import index_add, index_ceiling, index_floor, index_remove, make_index

_PACKS_IN_FULL = 10_000
"""Packs that may be searched to the limit, which bounds the time if no pack can be filled to the token."""


@njit(cache=True)
def min_bin_slack(
    counts: NDArray[np.int64], capacity: int, most_nodes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """`(taken int32[n], offsets int64[p+1])`: pack k holds samples of the lengths `taken[offsets[k]:offsets[k+1]]`.

    Args:
        counts: int64[longest + 1], samples of each length; zeros afterwards.
        capacity: most tokens of a pack.
        most_nodes: samples to try for one pack before taking the best choice so far; after 10,000 times as many in
            total, each pack takes the first samples that fit.
    """
    words, starts = make_index(len(counts))
    num = 0
    for length in range(1, len(counts)):
        if counts[length] > 0:
            index_add(words, starts, length)
            num += counts[length]
    taken = np.empty(num, dtype=np.int32)
    offsets = np.zeros(num + 1, dtype=np.int64)
    chosen = np.empty(num + 1, dtype=np.int64)
    best = np.empty(num + 1, dtype=np.int64)
    num_taken = 0
    num_packs = 0
    spare = (_PACKS_IN_FULL + 1) * most_nodes
    while num_taken < num:
        longest = index_floor(words, starts, capacity)
        shortest = index_ceiling(words, starts, np.int64(1))
        counts[longest] -= 1
        room = capacity - longest
        least = room + 1
        num_best = 0
        level = 0
        limit = min(longest, room)
        nodes = 0
        while True:
            # Down: always the longest that fits and is no longer than the one before.
            length = index_floor(words, starts, limit) if limit >= shortest else -1
            while length > 0 and counts[length] == 0:
                length = index_floor(words, starts, length - 1)
            if length > 0:
                nodes += 1
                counts[length] -= 1
                chosen[level] = length
                level += 1
                room -= length
                limit = min(length, room)
                continue
            if room < least:
                least = room
                num_best = level
                for i in range(level):
                    best[i] = chosen[i]
            if least == 0 or nodes > min(most_nodes, spare):
                break
            # Up, to the last sample whose place a shorter one can take and leave room for another.
            limit = 0
            while level > 0 and limit < shortest:
                level -= 1
                counts[chosen[level]] += 1
                room += chosen[level]
                limit = min(chosen[level] - 1, room - shortest)
            if limit < shortest:
                break
        # Only nodes beyond the best choice's own samples count as search.
        spare = max(0, spare - max(0, nodes - num_best))
        for i in range(level):
            counts[chosen[i]] += 1
        best[num_best] = longest
        counts[longest] += 1
        for i in range(num_best, -1, -1):
            length = best[i]
            counts[length] -= 1
            if counts[length] == 0:
                index_remove(words, starts, length)
            taken[num_taken] = length
            num_taken += 1
        num_packs += 1
        offsets[num_packs] = num_taken
    return taken, offsets[: num_packs + 1].copy()
