"""HBP (arXiv 2503.07680, algorithm 2), to the letter."""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import GroupStrategy


class Hbp(GroupStrategy):
    """HBP's plan."""

    name = "hbp"
    summary = "HBP (arXiv 2503.07680): ISF, GreedyFill, packs sorted by work, 500 steps of short groups first"
    short = "HBP's, to the letter"
    details = (
        "The curriculum of `hbp` takes a fifth of the short iterations at most: the paper's 500 steps are a seventh "
        "of its run, and would leave a small data set nothing to mix with the long ones."
    )
    curriculum_share = 0.2
    group_algorithm = "hbp"
    defaults = {"packing": "isf", "fill": "greedy", "balance": "sort", "curriculum_steps": 500}
