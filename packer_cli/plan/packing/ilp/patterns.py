"""From patterns over classes of lengths to packs: patterns take their samples, and best-fit places the others."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import group_moves
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.packing.best_fit import best_fit_each


def pack_patterns(
    lengths: Int32Array,
    order: Int32Array,
    capacity: int,
    class_starts: Int64Array,
    patterns: Int32Array,
    use: Int64Array,
) -> tuple[Int64Array, Int32Array]:
    """Packs `(offsets int64[p+1], members int32[n])`: first those of the patterns, then new ones for what is left.

    Args:
        lengths: int32[n], each 1 .. capacity.
        order: int32[n], samples by decreasing length.
        capacity: most tokens of a pack.
        class_starts: int64[m + 1]: class i is `order[class_starts[i]:class_starts[i + 1]]`.
        patterns: int32[k, m], samples of each class; they must fit a pack, whichever samples of a class they are.
        use: int64[k], how often to pack each pattern; one that finds too few samples takes what there is.
    """
    placed, sizes, rooms, left = _take(lengths, order, capacity, class_starts, patterns, use)
    to_pack, num_packs = best_fit_each(lengths, left, capacity, rooms)
    moves = np.append(as_ids(np.arange(len(sizes))), to_pack), np.append(sizes, np.ones(len(left), dtype=np.int32))
    return group_moves(*moves, np.concatenate([placed, left]), num_packs)


@njit(cache=True)
def _take(
    lengths: NDArray[np.int32],
    order: NDArray[np.int32],
    capacity: int,
    class_starts: NDArray[np.int64],
    patterns: NDArray[np.int32],
    use: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Samples of the patterns, pack by pack; the size and the room of each pack; the samples left, in order."""
    num_classes = patterns.shape[1]
    most = 0
    for number in use:
        most += number
    placed = np.empty(len(order), dtype=np.int32)
    sizes = np.empty(most, dtype=np.int32)
    rooms = np.empty(most, dtype=np.int64)
    next_of = class_starts[:-1].copy()
    held = np.empty(num_classes, dtype=np.int64)
    num_placed = 0
    num_packs = 0
    for k in range(len(use)):
        num_held = 0
        for i in range(num_classes):
            if patterns[k, i] > 0:
                held[num_held] = i
                num_held += 1
        for _ in range(use[k]):
            room = capacity
            before = num_placed
            for i in held[:num_held]:
                stop = min(next_of[i] + patterns[k, i], class_starts[i + 1])
                for j in range(next_of[i], stop):
                    placed[num_placed] = order[j]
                    num_placed += 1
                    room -= lengths[order[j]]
                next_of[i] = stop
            if num_placed == before:  # nor would the next one find any
                break
            sizes[num_packs] = num_placed - before
            rooms[num_packs] = room
            num_packs += 1
    left = np.empty(len(order) - num_placed, dtype=np.int32)
    num_left = 0
    for i in range(num_classes):
        for j in range(next_of[i], class_starts[i + 1]):
            left[num_left] = order[j]
            num_left += 1
    for j in range(class_starts[num_classes], len(order)):
        left[num_left] = order[j]
        num_left += 1
    return placed[:num_placed], sizes[:num_packs], rooms[:num_packs], left
