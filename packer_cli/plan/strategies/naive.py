"""HBP's baseline (arXiv 2503.07680, tables 2 and 6)."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.by_group.strategy import GroupStrategy


class Naive(GroupStrategy):
    """HBP's baseline."""

    name = "naive"
    summary = "HBP's baseline: ISF packs everything to the longest length, in random order"
    short = "HBP's baseline, with the longest group alone"
    defaults = {"packing": "isf", "balance": "none"}

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """The longest alone."""
        return (given[-1],)
