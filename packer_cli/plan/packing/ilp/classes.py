"""The histogram that column generation solves exactly: at most a few hundred lengths.

With few distinct lengths, it is the data's own. Otherwise samples up to a sixteenth of the capacity are *sand*, which
best-fit puts into whatever room the others, the *stones*, leave, and only the stones are solved. If these still have
too many lengths, `stages` takes over. To keep the knapsack small, sizes may be counted in units of several tokens,
*grains*; they are then rounded up for a packing and down for a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.types import Int32Array, Int64Array

SAND = 16
"""Samples of at most capacity / SAND tokens are sand."""
_MOST_STATES = 1 << 26
"""Most passes * capacity of one knapsack: its bytes, and about its nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The m lengths of the stones, decreasing."""

    values: Int64Array
    """int64[m], tokens."""
    up: Int64Array
    """int64[m], grains, rounded up: sizes for a packing."""
    down: Int64Array
    """int64[m], grains, rounded down: sizes for a bound."""
    counts: Int64Array
    """int64[m]: samples; at least 1."""
    capacity: int
    """Grains."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing was rounded, so that packings and bounds of the classes are those of the stones."""
        return bool(np.array_equal(self.up, self.down))


def make_classes(lengths: Int32Array, capacity: int, max_lengths: int) -> Classes | None:
    """Classes of the stones among `lengths` (int32[n], each 1 .. capacity); None if too many. O(n + capacity)."""
    counts = np.bincount(lengths)
    values = np.flatnonzero(counts)[::-1]
    if len(values) > max_lengths:
        values = values[values > capacity // SAND]
    if len(values) > max_lengths:
        return None
    counts = counts[values]
    if len(values) == 0:
        return Classes(values=values, up=values, down=values, counts=counts, capacity=capacity)
    # Dividing by a common divisor is exact; beyond that, lengths are rounded only if the knapsack would be too large.
    grain = int(np.gcd.reduce(values))
    fitting = capacity // values
    passes = np.where(counts >= fitting, 1, 1 + np.log2(np.minimum(counts, fitting))).sum()
    grain *= max(1, int(np.ceil(capacity // grain * passes / _MOST_STATES)))
    room = capacity // grain
    # Rounding up must not push a sample of nearly the whole capacity over it.
    up = np.minimum(-(-values // grain), room)
    return Classes(values=values, up=up, down=values // grain, counts=counts, capacity=room)
