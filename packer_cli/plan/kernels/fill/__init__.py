"""Which shorter samples fill the free space of long packs; one file a rule."""

from __future__ import annotations

from packer_cli.plan.kernels.fill.by_length import balanced_fill, longest_fill, median_length, pick_samples
from packer_cli.plan.kernels.fill.greedy import greedy_fill

__all__ = ["balanced_fill", "greedy_fill", "longest_fill", "median_length", "pick_samples"]
