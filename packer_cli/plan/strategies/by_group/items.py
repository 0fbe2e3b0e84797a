"""The needs and the work of items, as arranging a group takes them: their rows have several limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces


class ItemNeeds(NamedTuple):
    """m pieces of items."""

    needs: Int64Array
    """int64[r, m]: see `Pieces.needs`."""
    attention: Int64Array
    """int64[m]: attention work."""
    work: Int64Array
    """int64[m]: what the plan evens out."""

    @classmethod
    def of(cls, pieces: Pieces, linear: int) -> ItemNeeds | None:
        """Return the needs of pieces; None if their samples are flat."""
        if pieces.attention is None:
            return None
        needs = np.array(pieces.needs, dtype=np.int64)
        return cls(needs, pieces.attention, pieces.attention + linear * needs[0])

    def taken(self, offsets: Int64Array, pieces: Int32Array, limits: Sequence[int]) -> Int64Array:
        """Sum up how much each pack takes of its capacity, `limits[0]`, by its scarcest limit: int64[p]."""
        sums = (pack_sums(need, offsets, pieces) for need in self.needs)
        found = np.zeros(len(offsets) - 1, dtype=np.int64)
        for total, most in zip(sums, limits, strict=True):
            np.maximum(found, -(-total * limits[0] // most), out=found)
        return found

    def in_squares(self, work: Int64Array, sizes: Int32Array) -> Int64Array:
        """Scale attention work of packs (int64[p]) to that of squared sizes, by which fillers are chosen."""
        squares = np.square(sizes, dtype=np.float64).sum()
        return (work * (float(squares) / max(1.0, float(self.attention.sum())))).astype(np.int64)
