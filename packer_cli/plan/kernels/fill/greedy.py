"""Fills the free space of long packs with shorter samples in the order of the data: HBP's GreedyFill (algorithm 6).

As published it scans all remaining samples for each pack, which is quadratic. Here a tree over blocks of samples holds
the least length that is left in each, and answers "the next sample from here on that fits".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BLOCK = 64
_TAKEN = np.iinfo(np.int64).max


def greedy_fill(
    room: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    capacities: Sequence[int],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Give each pack in turn every sample that still fits: those of the next shorter group, then of the one below.

    Groups share no samples, so filling all packs from one group before the next gives the result of the paper's loop,
    which takes all groups for one pack before the next pack.

    Price: O(log n) for each placed sample and each pack, n samples; memory: n / 4 bytes.

    Args:
        room: int64[p], free tokens of each pack, in the order in which packs are filled.
        lengths: int32[n], of every sample, in the order of the data.
        is_left: bool[n], samples that may be taken; cleared for those that are.
        capacities: of the shorter groups, increasing.

    Returns:
        `(pack int32[a], sample int32[a])`: `sample[j]` goes to pack `pack[j]`; those of a pack in the order of choice.
    """
    room = room.copy()
    num_leaves = 1 << max(0, -(-len(lengths) // _BLOCK) - 1).bit_length()
    least = np.empty(2 * num_leaves, dtype=np.int64)
    packs, samples = [], []
    for shortest, longest in reversed(list(zip((0, *capacities), capacities, strict=False))):
        most = _index(lengths, is_left, shortest, longest, least)
        pack_of, chosen = (np.empty(most, dtype=np.int32) for _ in range(2))  # untouched memory costs nothing
        num_chosen = _fill_in_order(room, lengths, is_left, shortest, longest, least, pack_of, chosen)
        packs.append(pack_of[:num_chosen].copy())
        samples.append(chosen[:num_chosen].copy())
    return np.concatenate(packs), np.concatenate(samples)


@njit(cache=True)
def _index(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
) -> int:
    """Write the tree to `least` (int64[2 * leaves], the root at 1); the number of samples in it."""
    num_leaves = len(least) // 2
    num_samples = 0
    for block in range(num_leaves):
        least[num_leaves + block] = _TAKEN
        for i in range(block * _BLOCK, min((block + 1) * _BLOCK, len(lengths))):
            if is_left[i] and shortest < lengths[i] <= longest:
                num_samples += 1
                least[num_leaves + block] = min(least[num_leaves + block], lengths[i])
    for node in range(num_leaves - 1, 0, -1):
        least[node] = min(least[2 * node], least[2 * node + 1])
    return num_samples


@njit(cache=True)
def _fill_in_order(
    room: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    pack_of: NDArray[np.int32],
    chosen: NDArray[np.int32],
) -> int:
    num_chosen = 0
    for k in range(len(room)):
        i = np.int64(0)
        while True:
            i = _next_that_fits(lengths, is_left, shortest, min(longest, room[k]), least, i)
            if i < 0:
                break
            pack_of[num_chosen] = k
            chosen[num_chosen] = i
            num_chosen += 1
            room[k] -= lengths[i]
            is_left[i] = False
            _update(lengths, is_left, shortest, longest, least, i // _BLOCK)
            i += 1
    return num_chosen


@njit(cache=True, no_cpython_wrapper=True)
def _next_that_fits(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    first: int,
) -> int:
    """The first sample from `first` on with `shortest < length <= longest`; -1 for none."""
    block = first // _BLOCK
    while block >= 0:
        for i in range(first, min((block + 1) * _BLOCK, len(lengths))):
            if is_left[i] and shortest < lengths[i] <= longest:
                return i
        block = _next_block(least, block, longest)
        first = block * _BLOCK
    return -1


@njit(cache=True, no_cpython_wrapper=True)
def _next_block(least: NDArray[np.int64], block: int, longest: int) -> int:
    """The first block after this one that holds a sample of at most `longest`; -1 for none."""
    num_leaves = len(least) // 2
    node = num_leaves + block
    while node & 1 or least[node + 1] > longest:  # A right child, or its right neighbor holds nothing: go up.
        node >>= 1
        if node <= 1:
            return -1
    node += 1
    while node < num_leaves:
        node *= 2
        if least[node] > longest:
            node += 1
    return node - num_leaves


@njit(cache=True, no_cpython_wrapper=True)
def _update(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    block: int,
) -> None:
    """Bring the tree up to date after a sample of the block was taken."""
    node = len(least) // 2 + block
    smallest = _TAKEN
    for i in range(block * _BLOCK, min((block + 1) * _BLOCK, len(lengths))):
        if is_left[i] and shortest < lengths[i] <= longest:
            smallest = min(smallest, lengths[i])
    while node >= 1 and least[node] != smallest:
        least[node] = smallest
        smallest = min(smallest, least[node ^ 1])
        node >>= 1
