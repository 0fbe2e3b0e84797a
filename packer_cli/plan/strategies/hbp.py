"""HBP (arXiv 2503.07680, algorithm 2), to the letter."""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import GroupStrategy


class Hbp(GroupStrategy):
    """HBP's plan."""

    name = "hbp"
    summary = "HBP (arXiv 2503.07680): ISF, GreedyFill, packs sorted by work, 500 steps of short groups first"
    short = "HBP's, to the letter"
    defaults = {"packing": "isf", "fill": "greedy", "balance": "sort", "curriculum_steps": 500}
