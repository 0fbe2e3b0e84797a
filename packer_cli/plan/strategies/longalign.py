"""LongAlign (arXiv 2401.18058)."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.by_group.strategy import GroupStrategy


class LongAlign(GroupStrategy):
    """LongAlign's sorted batches, packed."""

    name = "longalign"
    summary = "LongAlign (arXiv 2401.18058): packs of samples of like length, sorted batches in random order"
    short = "LongAlign's sorted batches, with the longest group alone"
    defaults = {"packing": "sorted", "balance": "sort"}

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """The longest alone."""
        return (given[-1],)
