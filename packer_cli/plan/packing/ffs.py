"""First-fit on a shuffled order: each sample into the first pack that has room.

Source: Ullman 1971; at most 1.7 times the optimum (Dosa and Sgall 2013). Price: O(n log p), the tree of `ffd`. Use it
to see what `ffd` gains by sorting. Do not use it to plan: `bfs` is as random, pads a little less and is faster.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from packer_cli.plan.core.csr import group_moves
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm
from packer_cli.plan.packing.ffd import first_fit
from packer_cli.plan.packing.fit_needs import fit_needs


def pack(lengths: Int32Array, capacity: int, seed: int, options: ChunkOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by first-fit in seeded order; see the package for shapes. Chunks are of the shuffled order."""
    order = shuffled(len(lengths), rng_state(seed))
    return options.pack(order, lengths, lambda own: _pack(own, capacity))


def _pack(lengths: Int32Array, capacity: int) -> tuple[Int64Array, Int32Array]:
    to_pack, to_number, num_packs = first_fit(lengths, np.ones(len(lengths), dtype=np.int64), capacity)
    return group_moves(to_pack, to_number, np.arange(len(lengths), dtype=np.int32), num_packs)


ALGORITHM = PackingAlgorithm(
    name="ffs",
    summary="first-fit on a shuffled order",
    pack=pack,
    options=ChunkOptions,
    bytes_a_sample=30,
    pack_needs=partial(fit_needs, is_best=False, is_shuffled=True),
)
