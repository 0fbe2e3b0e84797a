"""Provable lower bounds."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def packs_lower_bound(lengths: NDArray[np.int32], capacity: int) -> int:
    """The L2 bound of Martello and Toth (1990): no packing of these lengths needs fewer packs.

    It is at least ceil(sum / capacity), and also counts the samples over half a capacity, which cannot share. For
    every a <= capacity/2: with the lengths over capacity - a, those over capacity/2 up to there, and those from a to
    capacity/2, the third kind fits only beside the second. O(n + capacity).

    Args:
        lengths: int32[n], each 1 .. capacity.
    """
    if len(lengths) == 0:
        return 0
    # count_to[x], sum_to[x]: number and sum of the lengths <= x.
    count_to = np.zeros(capacity + 1, dtype=np.int64)
    for length in lengths:
        count_to[length] += 1
    sum_to = np.zeros(capacity + 1, dtype=np.int64)
    for x in range(1, capacity + 1):
        sum_to[x] = sum_to[x - 1] + x * count_to[x]
        count_to[x] += count_to[x - 1]
    half = capacity // 2
    best = (sum_to[capacity] + capacity - 1) // capacity
    for a in range(half + 1):
        alone = count_to[capacity] - count_to[capacity - a]
        big = count_to[capacity - a] - count_to[half]
        big_sum = sum_to[capacity - a] - sum_to[half]
        small_sum = sum_to[half] - (sum_to[a - 1] if a > 0 else 0)
        over = small_sum - (big * capacity - big_sum)
        extra = (over + capacity - 1) // capacity if over > 0 else 0
        best = max(best, alone + big + extra)
    return best
