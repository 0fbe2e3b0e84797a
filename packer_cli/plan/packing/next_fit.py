"""Next-fit: take samples in order, and close the pack when the next one does not fit. Price: O(n), one pass.

- `next-fit` (Johnson 1973), in the order of the data. Use it to keep the order of the corpus; it pads the most (up to
  half of every pack if samples are long).
- `random`, a baseline, HBP's "random" batching: in shuffled order. Use it to see what packing gains. Do not use it to
  plan: `isf` is as random, and keeps only full packs.
- `sorted`, a baseline: by decreasing length, so that consecutive samples share a pack. LongAlign (arXiv 2401.18058)
  sorts, too, but does not pack what it sorted. At most 1.7 times the optimum (Baker and Coffman 1981). Use it if the
  samples of a pack should be alike. Do not use it if training needs randomness: the samples of a pack have nearly one
  length, and one over half the capacity is alone in its pack.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by next-fit in the data's order; see the package for shapes."""
    return next_fit(lengths, capacity), np.arange(len(lengths), dtype=np.int32)


def _shuffled(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    order = shuffled(len(lengths), rng_state(seed))
    return next_fit(lengths[order], capacity), order


def _falling(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    order = argsort_descending(lengths)
    return next_fit(lengths[order], capacity), order


@njit(cache=True)
def next_fit(lengths: Int32Array, capacity: int) -> Int64Array:
    """Return the offsets (int64[p+1]) of the packs, for samples in the given order."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = 0
    num_packs = 0
    total = 0
    for i in range(len(lengths)):
        if total + lengths[i] > capacity:
            num_packs += 1
            offsets[num_packs] = i
            total = 0
        total += lengths[i]
    if len(lengths):
        num_packs += 1
        offsets[num_packs] = len(lengths)
    return offsets[: num_packs + 1].copy()


NEXT_FIT = PackingAlgorithm(name="next-fit", summary="in the order of the corpus; pads most", pack=pack)
RANDOM = PackingAlgorithm(name="random", summary="baseline: next-fit on a shuffled order", pack=_shuffled)
SORTED = PackingAlgorithm(name="sorted", summary="baseline: next-fit by decreasing length", pack=_falling)
