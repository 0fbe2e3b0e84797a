"""The packs of a group, before the plan numbers them."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.plan.core.types import Int32Array, Int64Array


@dataclass(frozen=True, kw_only=True)
class GroupPacks:
    """The packs of one group in the order of their iterations."""

    offsets: Int64Array
    """int64[p+1]"""
    pieces: Int32Array
    """int32[m]"""
    num_whole: int
    """Packs before this index form whole iterations; the others are the rest."""
    is_spread: bool
    """Whether the rest was spread over all ranks, in rows shorter than the capacity."""
