"""Packs as compressed arrays: offsets int64[p+1] into members int64[m]."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BLOCK = 1 << 20


def group_by_pack(
    pack_of: NDArray[np.int64], order: NDArray[np.int64], num_packs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`(offsets int64[p+1], members int64[n])`; within a pack, samples are in the order of `order`. O(n + p).

    Args:
        pack_of: int64[n], pack of each sample.
        order: int64[n], the samples in the order of placing.
        num_packs: p.
    """
    return group_moves(pack_of[order], np.ones(len(order), dtype=np.int32), order, num_packs)


def group_moves(
    to_pack: NDArray[np.int64], to_number: NDArray[np.int32], order: NDArray[np.int64], num_packs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`(offsets int64[p+1], members int64[n])` from `best_fit`'s result and the order of placing, int64[n]."""
    offsets = np.zeros(num_packs + 2, dtype=np.int64)
    members = np.empty(len(order), dtype=np.int64)
    _group_moves(to_pack, to_number, order, offsets, members)
    return offsets[:-1], members


@njit(cache=True)
def _group_moves(
    to_pack: NDArray[np.int64],
    to_number: NDArray[np.int32],
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    members: NDArray[np.int64],
) -> None:
    """Write to `offsets` (int64[p+2], zeros), whose spare entry lets each pack's begin advance to its end."""
    for move in range(len(to_pack)):
        offsets[to_pack[move] + 2] += to_number[move]
    for k in range(2, len(offsets)):
        offsets[k] += offsets[k - 1]
    first = 0
    for move in range(len(to_pack)):
        pack = to_pack[move] + 1
        at = offsets[pack]
        for j in range(to_number[move]):
            members[at + j] = order[first + j]
        first += to_number[move]
        offsets[pack] = at + to_number[move]


def rename_members(members: NDArray[np.int64], names: NDArray[np.int64]) -> None:
    """Replace each member i by `names[i]`, in place and block by block, to need no second array. O(m)."""
    for first in range(0, len(members), _BLOCK):
        block = members[first : first + _BLOCK]
        block[:] = names[block]


def merge_packs(
    offsets: NDArray[np.int64], pieces: NDArray[np.int64], added_offsets: NDArray[np.int64], added: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Append `added` pieces to each pack. O(m), and 2 bytes per member besides the result."""
    sizes = np.stack([np.diff(offsets), np.diff(added_offsets)], axis=1).ravel()
    is_added = np.repeat(np.tile([False, True], len(offsets) - 1), sizes)
    merged = np.empty(len(is_added), dtype=np.int64)
    merged[is_added] = added
    merged[~is_added] = pieces
    return offsets + added_offsets, merged


@njit(cache=True)
def copy_packs(
    offsets: NDArray[np.int64],
    pieces: NDArray[np.int64],
    packs: NDArray[np.int64],
    to_offsets: NDArray[np.int64],
    to_pieces: NDArray[np.int64],
    first: int,
) -> None:
    """Copy the given packs, in the given order, to packs `first`, `first + 1`, ... of other arrays. O(m).

    The first of them begins at `to_offsets[first]`.
    """
    place = to_offsets[first]
    for i in range(len(packs)):
        for j in range(offsets[packs[i]], offsets[packs[i] + 1]):
            to_pieces[place] = pieces[j]
            place += 1
        to_offsets[first + i + 1] = place


def select_packs(
    offsets: NDArray[np.int64], pieces: NDArray[np.int64], packs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The given packs, in the given order. O(m)."""
    new_offsets = np.zeros(len(packs) + 1, dtype=np.int64)
    new_pieces = np.empty((offsets[packs + 1] - offsets[packs]).sum(), dtype=np.int64)
    copy_packs(offsets, pieces, packs, new_offsets, new_pieces, 0)
    return new_offsets, new_pieces
