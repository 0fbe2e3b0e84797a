"""Random batches, a baseline: next-fit on a shuffled order, in one pass.

Source: HBP's "random" batching. Price: O(n), a shuffle and one pass. Use it to see what packing gains. Do not use it
to plan: `isf` is as random, and keeps only full packs.
"""

from __future__ import annotations

from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.next_fit import next_fit


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by next-fit in seeded order; see the package for shapes."""
    order = shuffled(len(lengths), rng_state(seed))
    return next_fit(lengths[order], capacity), order


ALGORITHM = PackingAlgorithm(name="random", summary="baseline: next-fit on a shuffled order", pack=pack)
