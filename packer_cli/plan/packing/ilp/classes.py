"""The histogram that column generation sees: at most a few hundred lengths, whatever the data.

With few distinct lengths it is the data's own. Else samples up to a sixteenth of the capacity are *sand*: best-fit
puts them into whatever room the others, the *stones*, leave, so that only the stones are solved. Stones of more
lengths than wanted are put into classes of equal token mass, each one's lengths rounded up to its longest for a
packing and down to its shortest for a bound. Sizes are then counted in grains, so that the knapsack stays small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.plan.types import Int32Array, Int64Array

SAND = 16
"""A sample is sand from capacity / SAND down; more of them fit a pack."""
_MOST_STATES = 1 << 26
"""Most passes * capacity of one knapsack: bytes, and about as many nanoseconds."""
_GRAINS = 1 << 15
"""Grains in a capacity where lengths are rounded anyway: 4 tokens of 131,072."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """m classes of stones, by falling length."""

    shortest: Int64Array
    """int64[m], tokens."""
    up: Int64Array
    """int64[m]: size for a packing, in grains; rounded up."""
    down: Int64Array
    """int64[m]: size for a bound; rounded down."""
    counts: Int64Array
    """int64[m]: samples; at least 1."""
    capacity: int
    """In grains."""

    @property
    def is_exact(self) -> bool:
        """Nothing was rounded: a packing of the classes is one of the stones, and so is a bound."""
        return bool(np.array_equal(self.up, self.down))


def make_classes(lengths: Int32Array, capacity: int, max_lengths: int) -> Classes:
    """Classes of lengths (int32[n], each 1 .. capacity). O(n + capacity)."""
    counts = np.bincount(lengths)
    values = np.flatnonzero(counts)[::-1]
    counts = counts[values]
    if len(values) > max_lengths:
        is_stone = values > capacity // SAND
        values, counts = values[is_stone], counts[is_stone]
    first = np.arange(len(values))
    if len(values) > max_lengths:
        mass = np.cumsum(values * counts)
        class_of = (mass - mass[0]) * max_lengths // mass[-1]
        first = np.flatnonzero(np.diff(class_of, prepend=-1))
    if len(values) == 0:
        return Classes(shortest=values, up=values, down=values, counts=counts, capacity=capacity)
    longest = values[first]
    shortest = values[np.append(first[1:], len(values)) - 1]
    counts = np.add.reduceat(counts, first)
    if len(first) < len(values):
        grain = max(1, -(-capacity // _GRAINS))
    else:
        # A common divisor changes nothing; beyond that, lengths are rounded only where the knapsack would be too big.
        grain = int(np.gcd.reduce(values))
        fitting = capacity // values
        passes = np.where(counts >= fitting, 1, 1 + np.log2(np.minimum(counts, fitting))).sum()
        grain *= max(1, int(np.ceil(capacity // grain * passes / _MOST_STATES)))
    room = capacity // grain
    # Rounded up, a sample of nearly the whole capacity would not fit; alone in its pack it does.
    up = np.minimum(-(-longest // grain), room)
    return Classes(shortest=shortest, up=up, down=shortest // grain, counts=counts, capacity=room)
