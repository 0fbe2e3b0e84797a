"""Fills the free space of long packs with shorter samples, the longest first: a variant of HBP's algorithm 6.

The lengths of the remaining samples are counted and indexed. `pick_samples` then finds samples of the chosen lengths.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.kernels.length_index import full_index, index_floor, index_remove


def longest_fill(room: NDArray[np.int64], count: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Choose lengths for each pack in turn, always the longest that still fits.

    Price: one look-up a placed sample, O(candidates + placed + capacity).

    Args:
        room: int64[p], free tokens of each pack.
        count: int64[longest + 1], number of candidates of each length.

    Returns:
        `(pack int32[a], chosen int32[a])`: a sample of length `chosen[j]` goes to pack `pack[j]`, see `pick_samples`.
    """
    words, starts = full_index(count > 0)
    offsets = np.zeros(len(room) + 1, dtype=np.int64)
    chosen = np.empty(count.sum(), dtype=np.int32)  # untouched memory costs nothing
    _fill_longest_first(room, count.copy(), words, starts, offsets, chosen)
    return np.repeat(np.arange(len(room), dtype=np.int32), np.diff(offsets)), chosen[: offsets[-1]].copy()


@njit(cache=True)
def _fill_longest_first(
    room: NDArray[np.int64],
    left: NDArray[np.int64],
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int32],
) -> None:
    num_chosen = 0
    for k in range(len(room)):
        free = room[k]
        while free > 0:
            length = index_floor(words, starts, free)
            if length < 0:
                break
            chosen[num_chosen] = length
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(words, starts, length)
            free -= length
        offsets[k + 1] = num_chosen
