"""Counting sort by length, linear because lengths are small integers."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array

_BLOCK = 1 << 20


def count_lengths(lengths: NDArray[np.int32], chosen: NDArray[np.bool_] | None = None) -> Int64Array:
    """Histogram (int64[longest + 1]) of the lengths (int32[n]), or of the chosen ones (bool[n]). O(n + longest).

    Counts in blocks, since numpy copies its input as int64. A block is at least as long as the histogram so far.
    """
    count = np.zeros(1, dtype=np.int64)
    first = 0
    while first < len(lengths):
        stop = first + max(_BLOCK, len(count))
        block = lengths[first:stop]
        if chosen is not None:
            block = block[chosen[first:stop]]
        shorter, count = sorted((count, np.bincount(block)), key=len)
        count[: len(shorter)] += shorter
        first = stop
    return count


def argsort_descending(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Indices (int32[n]) of lengths (int32[n]) by decreasing length.

    Ties keep their order. O(n + longest).
    """
    order = np.empty(len(lengths), dtype=np.int32)
    argsort_into(lengths, np.zeros(int(lengths.max(initial=0)) + 2, dtype=np.int64), order)
    return order


@njit(cache=True)
def argsort_into(lengths: NDArray[np.int32], place: NDArray[np.int64], order: NDArray[np.int32]) -> None:
    """The kernel of `argsort_descending`. Writes to `order`; `place` is int64[longest + 2], initially zeros."""
    longest = len(place) - 2
    for i in range(len(lengths)):
        place[longest - lengths[i] + 1] += 1
    for i in range(1, longest + 2):
        place[i] += place[i - 1]
    for i in range(len(lengths)):
        bucket = longest - lengths[i]
        order[place[bucket]] = i
        place[bucket] += 1
