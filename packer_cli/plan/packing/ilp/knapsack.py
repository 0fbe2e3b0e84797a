"""Pricing: the most valuable pack, for given values of the lengths.

A bounded knapsack by dynamic programming over the capacity (Martello and Toth 1990, chapter 3). A length with as many
samples as fit takes one pass over the capacity; one with fewer takes a pass for each power of two in their number.
Price: O(passes * capacity) time, and as many bytes. Values are integers, so that a bound based on the greatest value
is exact.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def _passes(
    sizes: NDArray[np.int64], values: NDArray[np.int64], limits: NDArray[np.int64], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`(item, copies)` of each pass; 0 copies stand for any number."""
    item_of = np.empty(64 * len(sizes) + 1, dtype=np.int64)
    copies = np.empty(64 * len(sizes) + 1, dtype=np.int64)
    num = 0
    for i in range(len(sizes)):
        if values[i] <= 0 or sizes[i] > capacity or limits[i] <= 0:
            continue
        if limits[i] >= capacity // sizes[i]:
            item_of[num] = i
            copies[num] = 0
            num += 1
            continue
        left = limits[i]
        power = 1
        while left > 0:
            item_of[num] = i
            copies[num] = min(power, left)
            left -= copies[num]
            power *= 2
            num += 1
    return item_of[:num].copy(), copies[:num].copy()


@njit(cache=True)
def best_patterns(
    sizes: NDArray[np.int64], values: NDArray[np.int64], limits: NDArray[np.int64], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The pack of greatest value, and for each item a pack of great value that holds it.

    Args:
        sizes: int64[m], at least 1.
        values: int64[m]; items of value 0 or less are left out.
        limits: int64[m], most copies of each item in one pack.
        capacity: greatest total size of a pack.

    Returns:
        `(value int64[m + 1], pattern int32[m + 1, m])`: row 0 is the most valuable pack; row i + 1 holds item i, or
        has value -1 if no pack does.
    """
    item_of, copies = _passes(sizes, values, limits, capacity)
    took = np.zeros((len(item_of), capacity + 1), dtype=np.bool_)
    best = np.zeros(capacity + 1, dtype=np.int64)
    for p in range(len(item_of)):
        row = took[p]
        item = item_of[p]
        count = max(1, copies[p])
        shift = sizes[item] * count
        gain = values[item] * count
        if copies[p] == 0:
            for room in range(shift, capacity + 1):
                value = best[room - shift] + gain
                if value > best[room]:
                    best[room] = value
                    row[room] = True
        elif shift <= capacity:
            # Read from a copy, so that no iteration depends on another and the loop is vectorized.
            before = best.copy()
            for room in range(shift, capacity + 1):
                value = before[room - shift] + gain
                better = value > before[room]
                row[room] = better
                best[room] = value if better else before[room]

    num = len(sizes)
    worth = np.full(num + 1, -1, dtype=np.int64)
    patterns = np.zeros((num + 1, num), dtype=np.int32)
    for k in range(num + 1):
        room = capacity
        if k > 0:
            if values[k - 1] <= 0 or sizes[k - 1] > capacity or limits[k - 1] <= 0:
                continue
            room -= sizes[k - 1]
        worth[k] = best[room]
        pattern = patterns[k]
        p = len(item_of) - 1
        while p >= 0:
            item = item_of[p]
            if took[p, room]:
                count = max(1, copies[p])
                pattern[item] += count
                room -= count * sizes[item]
                if copies[p] == 0:
                    continue
            p -= 1
        # If all copies are in the pack already, it fits as it is.
        if k > 0 and pattern[k - 1] < limits[k - 1]:
            pattern[k - 1] += 1
            worth[k] += values[k - 1]
    return worth, patterns


@njit(cache=True)
def patterns_from(
    sizes: NDArray[np.int64],
    values: NDArray[np.int64],
    limits: NDArray[np.int64],
    capacity: int,
    least: int,
    most_patterns: int,
    most_nodes: int,
) -> tuple[NDArray[np.int32], bool]:
    """Every pattern of value `least` or more, by depth-first search: `(patterns int32[k, m], is_complete)`.

    A branch is pruned by the value per size of the items still to come. The search is exponential, hence the two
    limits; `is_complete` is False if it reached one. Arguments as in `best_patterns`; `least` is at least 1.
    """
    num = len(sizes)
    order = np.argsort(-(values / sizes))
    found = np.zeros((most_patterns, num), dtype=np.int32)
    num_found = 0
    count = np.zeros(num + 1, dtype=np.int64)
    room = capacity
    worth = 0
    depth = 0
    nodes = 0
    goes_down = True
    while True:
        if goes_down:
            nodes += 1
            if nodes > most_nodes:
                return found[:num_found].copy(), False
            is_leaf = depth == num
            if not is_leaf:
                item = order[depth]
                # Allow for more than the rounding error of the floats.
                hope = worth + room * (values[item] / sizes[item]) * (1 + 1e-12) + 1
                if hope < least:
                    goes_down = False
                else:
                    count[depth] = min(limits[item], room // sizes[item])
                    room -= count[depth] * sizes[item]
                    worth += count[depth] * values[item]
                    depth += 1
            if is_leaf:
                if worth >= least:
                    if num_found == most_patterns:
                        return found[:num_found].copy(), False
                    for i in range(num):
                        found[num_found, order[i]] = count[i]
                    num_found += 1
                goes_down = False
        else:
            depth -= 1
            if depth < 0:
                return found[:num_found].copy(), True
            if count[depth] > 0:
                item = order[depth]
                count[depth] -= 1
                room += sizes[item]
                worth -= values[item]
                depth += 1
                goes_down = True
