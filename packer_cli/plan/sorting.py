"""Counting sort by length: lengths are small integers, so sorting is linear."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def argsort_descending(lengths: NDArray[np.int32], longest: int) -> NDArray[np.int64]:
    """Indices (int64[n]) of lengths (int32[n], all <= longest) by falling length.

    Ties keep their order. O(n + longest).
    """
    place = np.zeros(longest + 2, dtype=np.int64)
    for length in lengths:
        place[longest - length + 1] += 1
    for i in range(1, longest + 2):
        place[i] += place[i - 1]
    order = np.empty(len(lengths), dtype=np.int64)
    for i in range(len(lengths)):
        bucket = longest - lengths[i]
        order[place[bucket]] = i
        place[bucket] += 1
    return order
