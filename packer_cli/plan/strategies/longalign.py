"""LongAlign (arXiv 2401.18058): its two ways of batching, as its code has them (`sort_and_group.py`)."""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import LongestAlone, OnlyCompared


class LongAlignPacking(LongestAlone):
    """Packing with loss weights."""

    name = "longalign-packing"
    summary = "LongAlign's packing (arXiv 2401.18058): next fit in random order; the loader has its loss weights"
    short = "LongAlign's packing, with the longest group alone"
    defaults = {"packing": "random", "balance": "none"}
    ignores = frozenset({"packing", "fill", "balance"})


class LongAlignSorted(OnlyCompared):
    """Sorted batches, without packing."""

    name = "longalign-sorted"
    summary = "LongAlign's sorted batches (arXiv 2401.18058): a sample a row, those of like length side by side"
    short = "LongAlign's sorted batches, which are not packed"
    defaults = {"packing": "padded:order=sorted,batch=1", "balance": "sort"}
