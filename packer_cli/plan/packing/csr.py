"""Packs as compressed arrays: offsets int64[p+1] into members int64[m]."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def group_by_pack(
    pack_of: NDArray[np.int64], order: NDArray[np.int64], num_packs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`(offsets int64[p+1], members int64[n])`; within a pack, samples stand as in `order`. O(n + p).

    Args:
        pack_of: int64[n], pack of each sample.
        order: int64[n], the samples in the order in which they were placed.
        num_packs: p.
    """
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    for pack in pack_of:
        offsets[pack + 1] += 1
    for k in range(num_packs):
        offsets[k + 1] += offsets[k]
    place = offsets[:-1].copy()
    members = np.empty(len(order), dtype=np.int64)
    for sample in order:
        pack = pack_of[sample]
        members[place[pack]] = sample
        place[pack] += 1
    return offsets, members


def merge_packs(
    offsets: NDArray[np.int64], pieces: NDArray[np.int64], added_offsets: NDArray[np.int64], added: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Append to each pack what is added to it. O(m)."""
    merged_offsets = offsets + added_offsets
    merged = np.empty(merged_offsets[-1], dtype=np.int64)
    for part_offsets, part, before in (
        (offsets, pieces, added_offsets[:-1]),
        (added_offsets, added, offsets[1:]),
    ):
        shift = np.repeat(before, np.diff(part_offsets))
        merged[np.arange(len(part)) + shift] = part
    return merged_offsets, merged


def select_packs(
    offsets: NDArray[np.int64], pieces: NDArray[np.int64], packs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The given packs, in the given order. O(m)."""
    sizes = np.diff(offsets)[packs]
    new_offsets = np.concatenate([[0], np.cumsum(sizes)])
    shift = np.repeat(offsets[:-1][packs] - new_offsets[:-1], sizes)
    return new_offsets, pieces[np.arange(new_offsets[-1]) + shift]
