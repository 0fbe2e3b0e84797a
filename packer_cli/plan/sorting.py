"""Counting sort by length: lengths are small integers, so sorting is linear."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


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
