"""Best-fit on a shuffled order: each sample into the fullest pack that has room.

Source: Johnson 1973; at most 1.7 times the optimum (Dosa and Sgall 2014). Price: O(n), the bitmap of `bfd`. Use it
for random packs in one pass: which samples meet depends on the shuffle. Do not use it where long samples may come
late, as in mixed lengths: they find the packs half full; `bfd` pads less.
"""

from __future__ import annotations

from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.bfd import best_fit
from packer_cli.plan.packing.csr import group_by_pack
from packer_cli.plan.random import rng_state, shuffled
from packer_cli.plan.types import Int32Array, Int64Array


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int64Array]:
    """See the package for shapes."""
    order = shuffled(len(lengths), rng_state(seed))
    pack_of, num_packs = best_fit(lengths, order, capacity)
    return group_by_pack(pack_of, order, num_packs)


ALGORITHM = PackingAlgorithm(name="bfs", summary="best-fit on a shuffled order", pack=pack, uses_seed=True)
