"""Counting sort by length: lengths are small integers, so sorting is linear."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.types import Int64Array

_BLOCK = 1 << 20


def count_lengths(lengths: NDArray[np.int32], longest: int, chosen: NDArray[np.bool_] | None = None) -> Int64Array:
    """The histogram, int64[longest + 1], of all lengths (int32[n]) or of the chosen ones (bool[n]). O(n + longest).

    Block by block, as numpy counts a copy of 8 bytes a value; a block is no shorter than the histogram.
    """
    count = np.zeros(longest + 1, dtype=np.int64)
    size = max(_BLOCK, longest)
    for first in range(0, len(lengths), size):
        block = lengths[first : first + size]
        if chosen is not None:
            block = block[chosen[first : first + size]]
        of_block = np.bincount(block)
        count[: len(of_block)] += of_block
    return count


def argsort_descending(lengths: NDArray[np.int32], longest: int) -> NDArray[np.int64]:
    """Indices (int64[n]) of lengths (int32[n], all <= longest) by falling length.

    Ties keep their order. O(n + longest).
    """
    order = np.empty(len(lengths), dtype=np.int64)
    argsort_into(lengths, np.zeros(longest + 2, dtype=np.int64), order)
    return order


@njit(cache=True)
def argsort_into(lengths: NDArray[np.int32], place: NDArray[np.int64], order: NDArray[np.int64]) -> None:
    """The kernel of `argsort_descending`: writes to `order`; `place` is int64[longest + 2], zeros at first."""
    longest = len(place) - 2
    for i in range(len(lengths)):
        place[longest - lengths[i] + 1] += 1
    for i in range(1, longest + 2):
        place[i] += place[i - 1]
    for i in range(len(lengths)):
        bucket = longest - lengths[i]
        order[place[bucket]] = i
        place[bucket] += 1
