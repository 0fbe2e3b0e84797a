"""Sorted batches, a baseline: consecutive samples, by decreasing length, share a pack.

LongAlign (arXiv 2401.18058) sorts, too, but does not pack what it sorted. Next-fit decreasing needs at most 1.7 times
the optimum (Baker and Coffman 1981). Price: O(n), a counting sort and one pass. Use it if the samples of a pack should
be alike. Do not use it if training needs randomness: the samples of a pack have nearly one length, and one over half
the capacity is alone in its pack.
"""

from __future__ import annotations

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.next_fit import next_fit


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by next-fit, longest first; see the package for shapes."""
    order = argsort_descending(lengths)
    return next_fit(lengths[order], capacity), order


ALGORITHM = PackingAlgorithm(name="sorted", summary="baseline: next-fit by decreasing length", pack=pack)
