"""Which shorter samples fill the free space of long packs; one file a rule."""

from __future__ import annotations

from packer_cli.plan.kernels.fill.balanced import balanced_fill, median_length
from packer_cli.plan.kernels.fill.greedy import greedy_fill
from packer_cli.plan.kernels.fill.longest import longest_fill
from packer_cli.plan.kernels.fill.pick import pick_samples

__all__ = ["balanced_fill", "greedy_fill", "longest_fill", "median_length", "pick_samples"]
