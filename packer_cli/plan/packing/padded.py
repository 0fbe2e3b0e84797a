"""Baselines that do not pack: padded batches, and one sample a pack.

A padded batch takes B rows of its longest sample's length, as in a trainer that does not pack.
Source: the random and sorted batches of HBP (arXiv 2503.07680, table 3).
Price: O(n), a shuffle or a counting sort, and one pass. Use it to see what packing gains, with `hbpack compare`. Such
batches are never written: hbpack writes packs, whose samples follow each other without padding.

`none` puts one sample into a pack. Price: O(n), two ranges. Use it to see what packing gains, or if a trainer cannot
separate the samples of a row. Do not use it otherwise: all the rest of a row is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within

_ORDERS = ("random", "sorted")


@dataclass(frozen=True, kw_only=True)
class PaddedOptions(PackingOptions):
    """Larger batches pad more, unless they are sorted."""

    batch: int = within(0, 0, 2**31 - 1)
    """Most samples of a batch; 0 for as many as fit."""
    order: str = "random"
    """`sorted`: batches of samples of like length (LongAlign)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("order", self.order in _ORDERS, f"be {' or '.join(_ORDERS)}", "padded")


def pack(lengths: Int32Array, capacity: int, seed: int, options: PaddedOptions) -> tuple[Int64Array, Int32Array]:
    """Form padded batches, whose B * longest tokens are at most the capacity; see the package for shapes."""
    if options.order == "sorted":
        order = argsort_descending(lengths)
    else:
        order = shuffled(len(lengths), rng_state(seed))
    return _batches(lengths[order], capacity, options.batch or len(lengths)), order


@njit(cache=True)
def _batches(lengths: NDArray[np.int32], capacity: int, most: int) -> NDArray[np.int64]:
    """Return the offsets (int64[p+1]) of the batches, for samples in the given order."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = 0
    num_batches = first = longest = 0
    for i in range(len(lengths)):
        longest_then = max(longest, int(lengths[i]))
        if i > first and (i - first == most or (i - first + 1) * longest_then > capacity):
            num_batches += 1
            offsets[num_batches] = first = i
            longest_then = int(lengths[i])
        longest = longest_then
    if len(lengths):
        num_batches += 1
        offsets[num_batches] = len(lengths)
    return offsets[: num_batches + 1].copy()


def _alone(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    return np.arange(len(lengths) + 1, dtype=np.int64), np.arange(len(lengths), dtype=np.int32)


NO_PACKING = PackingAlgorithm(name="none", summary="baseline: one sample a pack", pack=_alone, bytes_a_sample=180)
PADDED = PackingAlgorithm(
    name="padded",
    summary="baseline: batches padded to their longest sample; only compared, never written",
    pack=pack,
    options=PaddedOptions,
    is_padded=True,
    bytes_a_sample=40,
)
