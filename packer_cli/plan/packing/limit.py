"""Limits the samples of a pack, for any packing algorithm: what is over the limit is packed again.

Trainers whose graphs are captured once (CUDA graphs, `torch.compile`) take borders of a fixed number of samples.
Price: nothing where no pack is over the limit; else O(n log n) for the samples of packs that are.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import ONE_EACH, group_moves, merge_packs, pack_tokens_and_work
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import LengthIndex, empty_index, index_add, index_ceiling, index_remove


def limit_samples(
    offsets: Int64Array, members: Int32Array, lengths: Int32Array, capacity: int, most: int
) -> tuple[Int64Array, Int32Array]:
    """Limit packs to `most` samples each, with as many more packs as that takes.

    A pack over the limit keeps its longest samples. The others go, the longest first, into the fullest pack that has
    room for them in tokens and in samples, or into new packs at the end.

    Args:
        offsets, members: the packs, int64[p+1] and int32[n].
        lengths: int32, of the samples.
        capacity: most tokens of a pack.
        most: at least 1.
    """
    kept, kept_members, excess = trim_packs(offsets, members, lengths, most)
    if not len(excess):
        return offsets, members
    order = excess[np.argsort(-lengths[excess], kind="stable")]
    tokens, _ = pack_tokens_and_work(kept, kept_members, lengths)
    pack_of, num_packs = place_limited(lengths[order], capacity - tokens, most - np.diff(kept), capacity, most)
    added_offsets, added = group_moves(pack_of, ONE_EACH, order, num_packs)
    return merge_packs(
        np.append(kept, np.full(num_packs + 1 - len(kept), kept[-1])), kept_members, added_offsets, added
    )


def trim_packs(
    offsets: Int64Array, members: Int32Array, lengths: NDArray[np.int32], most: int
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Trim packs of more than `most` samples to their longest ones; return the packs, and the samples that they lost.

    Of samples of equal length, a pack keeps its first ones. The order of those that stay is kept.

    Returns:
        `(offsets int64[p+1], members int32[m], lost int32[n - m])`.
    """
    sizes = np.diff(offsets)
    over = np.flatnonzero(sizes > most)
    if not len(over):
        return offsets, members, members[:0]
    stays = np.ones(len(members), dtype=np.bool_)
    size = sizes[over]
    first = np.cumsum(size) - size
    place = np.arange(int(size.sum())) + np.repeat(offsets[over] - first, size)
    pack = np.repeat(np.arange(len(over)), size)
    falling = np.lexsort((-lengths[members[place]], pack))  # Stable, and of each pack a run of its own.
    is_lost = np.arange(len(falling)) - np.repeat(first, size) >= most
    stays[place[falling[is_lost]]] = False
    new_offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, most))])
    return new_offsets, members[stays], members[~stays]


def place_limited(
    lengths: Int32Array, rooms: Int64Array, slots: Int64Array, capacity: int, most: int
) -> tuple[Int32Array, int]:
    """Place by best-fit with a limit on samples: each sample in turn into the fullest pack with room for it.

    Args:
        lengths: int32[n], in the order of placing, each 1 .. capacity.
        rooms, slots: int64[p], free tokens of each pack, and samples that it may still take.
        capacity, most: of a new pack.

    Returns:
        `(pack int32[n], packs)`; new packs are numbered from p. Of equally full ones the last touched is chosen.
    """
    num_all = len(rooms) + len(lengths)
    room, slot, below = (np.empty(num_all, dtype=np.int64) for _ in range(3))
    room[: len(rooms)], slot[: len(rooms)] = rooms, slots
    longest = int(lengths.max(initial=0))
    top = np.full(longest + 1, -1, dtype=np.int64)
    pack_of = np.empty(len(lengths), dtype=np.int32)
    index = empty_index(longest + 1)
    falling = np.argsort(-rooms, kind="stable")
    num_packs = _place(lengths, falling, room, slot, below, top, index, capacity, most, pack_of)
    return pack_of, num_packs


@njit(cache=True)
def _place(
    lengths: NDArray[np.int32],
    falling: NDArray[np.int64],
    room: NDArray[np.int64],
    slot: NDArray[np.int64],
    below: NDArray[np.int64],
    top: NDArray[np.int64],
    index: LengthIndex,
    capacity: int,
    most: int,
    pack_of: NDArray[np.int32],
) -> int:
    """Write to `pack_of`. Packs with the same room form a stack: its `top`, and the pack `below` each.

    Only packs that may take another sample are in a stack. Those with at least as much room as the longest sample
    share one, with the least room on top: the packs that are there come by falling room, a pack that took a sample has
    less than those below it, and a new one is opened only when none is left.
    """
    longest = len(top) - 1
    num_packs = len(falling)
    for i in range(-num_packs, len(lengths)):
        if i < 0:
            pack = falling[i]  # First of all, the packs that are there.
        else:
            free = index_ceiling(index, np.int64(lengths[i]))
            if free < 0:
                pack = num_packs
                num_packs += 1
                room[pack], slot[pack] = capacity, most
            else:
                pack = top[free]
                top[free] = below[pack]
                if top[free] < 0:
                    index_remove(index, free)
            room[pack] -= lengths[i]
            slot[pack] -= 1
            pack_of[i] = pack
        free = min(room[pack], longest)
        if free > 0 and slot[pack] > 0:
            if top[free] < 0:
                index_add(index, free)
            below[pack] = top[free]
            top[free] = pack
    return num_packs
