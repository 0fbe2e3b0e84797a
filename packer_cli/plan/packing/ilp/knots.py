"""The linear program for thousands of lengths: its dual values are linear in the length between a few *knots*.

A sample between two knots counts partly for each, by its distance, in demands and patterns alike. Patterns therefore
keep their true lengths; only the dual values between two knots can no longer vary freely, which costs little if the
value of a sample does not jump with its length. This is the full program with fewer dual values to choose from, so its
bound is proved. Classes of rounded lengths err in proportion to their width: on 20,000 lengths between 20K and 100K,
300 classes lose 12 packs of 9,168, and 50 knots none. Price: seconds, 20 rounds of O(distinct lengths * capacity).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.ilp.columns import UNIT, solve_master, total_worth

_MOST_STATES = 1 << 26
"""Most distinct lengths * capacity of one pricing; beyond that, lengths are rounded down to grains."""
_CLOSE = 0.25
"""Pricing stops when the program's value is within this many packs of its bound."""


@dataclass(frozen=True, kw_only=True)
class ManyLengths:
    """The program's solution, or the best one at the deadline."""

    patterns: list[Int64Array]
    """For each pattern the lengths of its samples, decreasing, each rounded down to a multiple of `grain`."""
    use: NDArray[np.float64]
    """float64[k]: how often each pattern is used; empty if no program was solved in time."""
    bound: int
    """No packing needs fewer packs."""
    grain: int
    """Tokens."""
    knots: Int64Array
    """int64[m], increasing lengths."""


def solve_many(values: Int64Array, counts: Int64Array, capacity: int, num_knots: int, deadline: float) -> ManyLengths:
    """Price patterns until the program is within a quarter of a pack of its bound, or the deadline passes.

    Args:
        values: int64[v], distinct lengths, increasing; the least, which bounds the samples per pack, well over 0.
        counts: int64[v], samples of each.
        capacity: most tokens of a pack.
        num_knots: most knots.
        deadline: in `time.monotonic()` seconds.
    """
    grain = 1
    while len(np.unique(values // grain)) * (capacity // grain) > _MOST_STATES:
        grain *= 2
    sizes, place = np.unique(values // grain, return_inverse=True)
    number = np.bincount(place, weights=counts).astype(np.int64)
    room = capacity // grain
    at_knots = _knots(sizes, number, num_knots)
    knots = sizes[at_knots]
    position = np.interp(sizes, knots, np.arange(len(knots)))
    lower = np.minimum(position.astype(np.int64), max(0, len(knots) - 2))
    upper = np.minimum(lower + 1, len(knots) - 1)
    share = position - lower

    def parts(items: NDArray[np.int32]) -> NDArray[np.float64]:
        rows = np.zeros((len(items), len(knots)))
        for column in range(items.shape[1]):
            held = np.flatnonzero(items[:, column] >= 0)
            item = items[held, column]
            np.add.at(rows, (held, lower[item]), 1 - share[item])
            np.add.at(rows, (held, upper[item]), share[item])
        return rows

    demands = np.bincount(lower, number * (1 - share), minlength=len(knots))
    demands += np.bincount(upper, number * share, minlength=len(knots))
    most_items = room // int(sizes[0])
    items = np.full((len(knots), most_items), -1, dtype=np.int32)
    for k, place_of_knot in enumerate(at_knots):
        items[k, : room // sizes[place_of_knot]] = place_of_knot
    rows = parts(items)
    nearest = np.minimum(np.rint(position).astype(np.int64), len(knots) - 1)
    bound = 0.0
    proved = 0
    use = np.empty(0)
    used = items[:0]
    while (solved := solve_master(rows, demands, deadline)) is not None:
        use, duals = solved
        used = items
        worth = np.floor(np.clip(duals[lower] * (1 - share) + duals[upper] * share, 0, 1) * UNIT).astype(np.int64)
        most = most_worth(sizes, worth, room)
        if most[room] > 0:
            total = total_worth(number, worth)
            bound = max(bound, total / int(most[room]))
            proved = max(proved, -(-total // int(most[room])))
        with_item = most[room - sizes] + worth
        # For each knot, the best pack with a length near it.
        ranked = np.lexsort((-with_item, nearest))
        first = ranked[np.flatnonzero(np.diff(nearest[ranked], prepend=-1))]
        first = first[with_item[first] > UNIT * (1 + 1e-6)]
        if len(first) == 0 or use.sum() - bound < _CLOSE or time.monotonic() >= deadline:
            break
        new = np.unique(np.sort(packs_with(sizes, worth, most, room, first, most_items), axis=1), axis=0)
        if len(items) > 6 * len(knots) + 500:
            cost = 1 - rows @ duals
            cost[use > 0] = -1
            kept = np.sort(np.argsort(cost, kind="stable")[: 3 * len(knots) + 250])
            items, rows = items[kept], rows[kept]
        items, rows = np.concatenate([items, new]), np.concatenate([rows, parts(new)])
    is_used = use >= 1e-6
    patterns = [np.sort(sizes[row[row >= 0]])[::-1] * grain for row in used[is_used]]
    return ManyLengths(patterns=patterns, use=use[is_used], bound=proved, grain=grain, knots=knots * grain)


def _knots(sizes: Int64Array, number: Int64Array, most: int) -> Int64Array:
    """Indices of the knots in `sizes`: both ends, and in between, one per equal share of the tokens."""
    mass = np.cumsum(sizes * number)
    cuts = np.searchsorted(mass, np.linspace(0, mass[-1], most))
    return np.unique(np.concatenate([[0], np.minimum(cuts, len(sizes) - 1), [len(sizes) - 1]]))


@njit(cache=True)
def most_worth(sizes: NDArray[np.int64], worth: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """int64[room + 1]: the greatest worth of a pack that has this much room, with any number of each size.

    Args:
        sizes: int64[v], increasing, at least 1.
        worth: int64[v], not negative.
    """
    best = np.zeros(room + 1, dtype=np.int64)
    # A block reads only entries before it, so the iterations of its inner loop are independent.
    block = sizes[0]
    for first in range(sizes[0], room + 1, block):
        stop = min(first + block, room + 1)
        for r in range(first, stop):
            best[r] = best[first - 1]
        for i in range(len(sizes)):
            if sizes[i] >= stop:
                break
            for r in range(max(first, sizes[i]), stop):
                value = best[r - sizes[i]] + worth[i]
                if value > best[r]:
                    best[r] = value
        for r in range(first, stop):
            best[r] = max(best[r], best[r - 1])
    return best


@njit(cache=True)
def packs_with(
    sizes: NDArray[np.int64],
    worth: NDArray[np.int64],
    most: NDArray[np.int64],
    room: int,
    firsts: NDArray[np.int64],
    most_items: int,
) -> NDArray[np.int32]:
    """For each item of `firsts`, a pack of greatest worth that holds it: int32[f, most_items], padded with -1."""
    packs = np.full((len(firsts), most_items), -1, dtype=np.int32)
    for k in range(len(firsts)):
        packs[k, 0] = firsts[k]
        num = 1
        left = room - sizes[firsts[k]]
        while most[left] > 0:
            while left > 0 and most[left - 1] == most[left]:
                left -= 1
            i = 0
            while most[left - sizes[i]] + worth[i] != most[left]:
                i += 1
            packs[k, num] = i
            num += 1
            left -= sizes[i]
    return packs
