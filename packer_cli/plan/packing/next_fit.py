"""Packs of consecutive samples: next-fit, and baselines that do not pack. Price of all: O(n), an order and one pass.

Next-fit closes the pack when the next sample does not fit.

- `next-fit` (Johnson 1973), in the order of the data. Use it to keep the order of the corpus; it pads the most (up to
  half of every pack if samples are long).
- `random`, a baseline, HBP's "random" batching: in shuffled order. Use it to see what packing gains. Do not use it to
  plan: `isf` is as random, and keeps only full packs.
- `sorted`, a baseline: by decreasing length, so that consecutive samples share a pack. LongAlign (arXiv 2401.18058)
  sorts, too, but does not pack what it sorted. At most 1.7 times the optimum (Baker and Coffman 1981). Use it if the
  samples of a pack should be alike. Do not use it if training needs randomness: the samples of a pack have nearly one
  length, and one over half the capacity is alone in its pack.

A padded batch takes B rows of its longest sample's length, as in a trainer that does not pack. Such batches are never
written: hbpack writes packs, whose samples follow each other without padding.

- `padded`: the random and sorted batches of HBP (arXiv 2503.07680, table 3). Use it to see what packing gains, with
  `hbpack compare`.
- `none` puts one sample into a pack. Use it to see what packing gains, or if a trainer cannot separate the samples of
  a row. Do not use it otherwise: all the rest of a row is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within


def pack_in_order(
    lengths: Int32Array, capacity: int, seed: int, options: PackingOptions
) -> tuple[Int64Array, Int32Array]:
    """Pack by next-fit in the data's order; see the package for shapes."""
    return next_fit(lengths, capacity), np.arange(len(lengths), dtype=np.int32)


def _shuffled(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    order = shuffled(len(lengths), rng_state(seed))
    return next_fit(lengths[order], capacity), order


def _falling(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    order = argsort_descending(lengths)
    return next_fit(lengths[order], capacity), order


@njit(cache=True)
def next_fit(lengths: Int32Array, capacity: int, is_padded: bool = False, most: int = 0) -> Int64Array:
    """Return the offsets (int64[p+1]) of the packs, for samples in the given order.

    Args:
        is_padded: whether each sample takes as many tokens as the longest of its pack, which has at most `most`.
    """
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = 0
    num_packs = first = total = longest = 0
    for i in range(len(lengths)):
        total += lengths[i]
        if is_padded:
            longest = max(longest, int(lengths[i]))
            total = (i - first + 1) * longest if i - first < most else capacity + 1
        if total > capacity:
            num_packs += 1
            offsets[num_packs] = first = i
            total = longest = int(lengths[i])
    if len(lengths):
        num_packs += 1
        offsets[num_packs] = len(lengths)
    return offsets[: num_packs + 1].copy()


def cut_steps(lengths: NDArray[np.integer], most: int) -> Int64Array:
    """Cut steps of at most so many tokens; return their starts, and the end (int64[s+1]).

    A longer sample is a step of its own.

    Args:
        lengths: int[n], tokens, in the order of training.

    >>> cut_steps(np.array([3, 3, 9, 3]), 6).tolist()
    [0, 2, 3, 4]
    """
    return next_fit(np.minimum(lengths, np.int64(most)).astype(np.int32), most)


NEXT_FIT = PackingAlgorithm(name="next-fit", summary="in the order of the corpus; pads most", pack=pack_in_order)
RANDOM = PackingAlgorithm(name="random", summary="baseline: next-fit on a shuffled order", pack=_shuffled)
SORTED = PackingAlgorithm(name="sorted", summary="baseline: next-fit by decreasing length", pack=_falling)


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


def _pad(lengths: Int32Array, capacity: int, seed: int, options: PaddedOptions) -> tuple[Int64Array, Int32Array]:
    """Form padded batches, whose B * longest tokens are at most the capacity; see the package for shapes."""
    if options.order == "sorted":
        order = argsort_descending(lengths)
    else:
        order = shuffled(len(lengths), rng_state(seed))
    return next_fit(lengths[order], capacity, True, options.batch or len(lengths)), order


def _alone(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    return np.arange(len(lengths) + 1, dtype=np.int64), np.arange(len(lengths), dtype=np.int32)


NO_PACKING = PackingAlgorithm(name="none", summary="baseline: one sample a pack", pack=_alone, bytes_a_sample=180)
PADDED = PackingAlgorithm(
    name="padded",
    summary="baseline: batches padded to their longest sample; only compared, never written",
    pack=_pad,
    options=PaddedOptions,
    is_padded=True,
    bytes_a_sample=40,
)
