"""HBP's baseline (arXiv 2503.07680, tables 2 and 6)."""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import LongestAlone


class Naive(LongestAlone):
    """HBP's baseline."""

    name = "naive"
    summary = "HBP's baseline: ISF packs everything to the longest length, in random order"
    short = "HBP's baseline, with the longest group alone"
    defaults = {"packing": "isf", "balance": "none"}
