"""The histogram that column generation solves exactly: at most a few hundred lengths.

With few distinct lengths it is the data's own. Else samples up to a sixteenth of the capacity are *sand*: best-fit
puts them into whatever room the others, the *stones*, leave, so that only the stones are solved. Where these have too
many lengths as well, `stages` takes over. Sizes may be counted in grains, so that the knapsack stays small; they are
then rounded up for a packing and down for a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.plan.types import Int32Array, Int64Array

SAND = 16
"""A sample is sand from capacity / SAND down; more of them fit a pack."""
_MOST_STATES = 1 << 26
"""Most passes * capacity of one knapsack: bytes, and about as many nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """m lengths of stones, falling."""

    values: Int64Array
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


def make_classes(lengths: Int32Array, capacity: int, max_lengths: int) -> Classes | None:
    """The lengths (int32[n], each 1 .. capacity) of the stones; None where they are too many. O(n + capacity)."""
    counts = np.bincount(lengths)
    values = np.flatnonzero(counts)[::-1]
    if len(values) > max_lengths:
        values = values[values > capacity // SAND]
    if len(values) > max_lengths:
        return None
    counts = counts[values]
    if len(values) == 0:
        return Classes(values=values, up=values, down=values, counts=counts, capacity=capacity)
    # A common divisor changes nothing; beyond that, lengths are rounded only where the knapsack would be too big.
    grain = int(np.gcd.reduce(values))
    fitting = capacity // values
    passes = np.where(counts >= fitting, 1, 1 + np.log2(np.minimum(counts, fitting))).sum()
    grain *= max(1, int(np.ceil(capacity // grain * passes / _MOST_STATES)))
    room = capacity // grain
    # Rounded up, a sample of nearly the whole capacity would not fit; alone in its pack it does.
    up = np.minimum(-(-values // grain), room)
    return Classes(values=values, up=up, down=values // grain, counts=counts, capacity=room)
