"""Fill the free space of long packs with shorter samples (HBP, algorithm 6).

`greedy_fill` is the paper's: longest first. Written literally it is quadratic; here the remaining samples are indexed
by length, so each placed sample costs one look-up: O(candidates + placed + capacity).

`balanced_fill` is ours: the packs of an iteration receive fillers of such lengths that their attention work meets. A
pack of free space r that lacks work w takes fillers of about w / r tokens, since a filler of s tokens does s work a
token. It leaves the lengths that HBP would use up first for later, and pads as little.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.length_index import index_add, index_ceiling, index_floor, index_remove, make_index


@njit(cache=True)
def _by_length(
    lengths: NDArray[np.int32], longest: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Index of the lengths, and the samples of each: `samples[begin[x]:begin[x+1]]` have length x."""
    words, starts = make_index(longest + 1)
    begin = np.zeros(longest + 2, dtype=np.int64)
    for length in lengths:
        begin[length + 1] += 1
        index_add(words, starts, length)
    for length in range(1, longest + 2):
        begin[length] += begin[length - 1]
    place = begin[:-1].copy()
    samples = np.empty(len(lengths), dtype=np.int64)
    for i in range(len(lengths)):
        samples[place[lengths[i]]] = i
        place[lengths[i]] += 1
    return words, starts, begin, samples


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
    words, starts, begin, samples = _by_length(lengths, longest)
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
            chosen[num_chosen] = samples[taken_from[length]]
            num_chosen += 1
            taken_from[length] += 1
            if taken_from[length] == begin[length + 1]:
                index_remove(words, starts, length)
            free -= length
        offsets[k + 1] = num_chosen
    return offsets, chosen[:num_chosen].copy()


@njit(cache=True)
def _next_length(free: int, lack: float) -> int:
    """Longest of the fillers that fill `free` tokens and do `lack` work, if the others are alike.

    k equal fillers do free^2 / k work, so k = ceil(free^2 / lack) of them do at most `lack`; one longer and k - 1
    equal ones do it exactly.
    """
    square = float(free) * free
    if lack >= square:
        return free
    if lack <= free:
        return 1
    k = np.ceil(square / lack)
    return max(1, int((free + np.sqrt((k - 1) * max(0.0, k * lack - square))) / k))


@njit(cache=True)
def balanced_fill(
    room: NDArray[np.int64],
    work: NDArray[np.int64],
    order: NDArray[np.int64],
    num_ranks: int,
    lengths: NDArray[np.int32],
    longest: int,
    typical: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose samples for each pack so that the packs of an iteration do equal work.

    Args:
        room: int64[p], free tokens of each pack.
        work: int64[p], attention work of each pack before it is filled.
        order: int64[p], the packs by falling work; `num_ranks` in a row form an iteration.
        lengths: int32[c], lengths of the samples that may be moved, all <= longest.
        typical: a length that is plentiful; the heaviest packs are filled with about this.

    Returns:
        `(pack int64[a], chosen int64[a])`: candidate `chosen[j]` goes to pack `pack[j]`.
    """
    words, starts, begin, samples = _by_length(lengths, longest)
    taken_from = begin[:-1].copy()
    chosen = np.empty(len(lengths), dtype=np.int64)
    pack_of = np.empty(len(lengths), dtype=np.int64)
    num_chosen = 0
    for first in range(0, len(order), num_ranks):
        packs = order[first : first + num_ranks]
        target = 0.0
        for k in packs:
            target = max(target, work[k] + float(room[k]) * typical)
        for k in packs:
            free = room[k]
            done = float(work[k])
            while free > 0:
                length = index_floor(words, starts, _next_length(free, target - done))
                if length < 0:
                    length = index_ceiling(words, starts, 1)
                    if length < 0 or length > free:
                        break
                chosen[num_chosen] = samples[taken_from[length]]
                pack_of[num_chosen] = k
                num_chosen += 1
                taken_from[length] += 1
                if taken_from[length] == begin[length + 1]:
                    index_remove(words, starts, length)
                free -= length
                done += float(length) * length
    return pack_of[:num_chosen].copy(), chosen[:num_chosen].copy()
