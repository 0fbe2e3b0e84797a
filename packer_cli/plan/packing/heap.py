"""A binary heap in two arrays, least (key, id) first; ids make the order of equal keys deterministic."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def heap_push(keys: NDArray[np.int64], ids: NDArray[np.int64], size: int, key: int, item: int) -> None:
    """Add an entry to the `size` entries of the heap. O(log size)."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[above] < key or (keys[above] == key and ids[above] < item):
            break
        keys[at], ids[at] = keys[above], ids[above]
        at = above
    keys[at], ids[at] = key, item


@njit(cache=True)
def heap_replace(keys: NDArray[np.int64], ids: NDArray[np.int64], size: int, key: int, item: int) -> None:
    """Replace the least of the heap's `size` entries by another. O(log size)."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (keys[right] < keys[below] or (keys[right] == keys[below] and ids[right] < ids[below])):
            below = right
        if key < keys[below] or (key == keys[below] and item < ids[below]):
            break
        keys[at], ids[at] = keys[below], ids[below]
        at = below
    keys[at], ids[at] = key, item


@njit(cache=True)
def heap_pop(keys: NDArray[np.int64], ids: NDArray[np.int64], size: int) -> None:
    """Remove the least of the heap's `size` entries, `(keys[0], ids[0])`. O(log size)."""
    if size > 1:
        heap_replace(keys, ids, size - 1, keys[size - 1], ids[size - 1])
