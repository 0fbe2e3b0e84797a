"""hbpack's own: every option at its default."""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import GroupStrategy


class Balanced(GroupStrategy):
    """hbpack's own plan."""

    name = "balanced"
    summary = "hbpack's own: best fit, fillers that even out work, samples exchanged"
    short = "hbpack's"
    evens_steps = True
