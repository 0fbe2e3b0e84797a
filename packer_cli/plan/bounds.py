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


def lp_lower_bound(lengths: NDArray[np.int32], capacity: int, time_limit: float = 60.0, max_lengths: int = 300) -> int:
    """The rounded-up linear program of cutting stock: no packing needs fewer packs; at least `packs_lower_bound`.

    Source: Gilmore and Gomory 1961; Farley 1990, whose bound holds where column generation is stopped early. The
    optimum is hardly ever more than one pack above the full program's value, so it tells a good packing from a merely
    plausible one; with more than `max_lengths` distinct lengths it is that of rounded-down lengths, and weaker.
    Price: seconds, O(distinct lengths * capacity) a round; `packs_lower_bound` is as good where samples are short
    against the capacity, and free.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds; less gives a valid bound that may be smaller.
        max_lengths: distinct lengths that are solved exactly.

    Raises:
        ValueError: PuLP has no solver.
    """
    from packer_cli.plan.packing.ilp.cutting_stock import lp_bound  # It builds on this module.

    return lp_bound(lengths, capacity, time_limit, max_lengths)
