"""The strategies of the papers, as defaults of the plan options. An option that you give wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to plan."""

    summary: str
    """What it does, and whose it is; for tables and docs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Plan options that differ from those of `balanced`."""
    is_one_group: bool = False
    """Whether all samples go to the longest group."""


STRATEGIES: Mapping[str, Strategy] = {
    "balanced": Strategy(summary="hbpack's own: best fit, fillers that even out work, samples exchanged"),
    "hbp": Strategy(
        summary="HBP (arXiv 2503.07680): ISF, GreedyFill, packs sorted by work, 500 steps of short groups first",
        defaults={"packing": "isf", "fill": "greedy", "balance": "sort", "curriculum_steps": 500},
    ),
    "naive": Strategy(
        summary="HBP's baseline: ISF packs everything to the longest length, in random order",
        defaults={"packing": "isf", "balance": "none"},
        is_one_group=True,
    ),
    "longalign": Strategy(
        summary="LongAlign (arXiv 2401.18058): packs of samples of like length, sorted batches in random order",
        defaults={"packing": "sorted", "balance": "sort"},
        is_one_group=True,
    ),
}
"""By name, in the order of tables."""
