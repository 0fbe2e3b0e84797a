"""Objects that a user has in Python."""

from __future__ import annotations

import numpy as np

from packer_cli.plan.strategies.by_group.strategy import GroupStrategy

LENGTHS = [60, 50, 50, 40, 30, 70] * 10


class Longest(GroupStrategy):
    """The longest group alone."""

    name = "longest-only"
    summary = "the longest group alone"

    def groups(self, given):
        return (given[-1],)


def one_each(lengths, capacity, seed):
    """One sample a pack."""
    return np.arange(len(lengths) + 1), np.arange(len(lengths))
