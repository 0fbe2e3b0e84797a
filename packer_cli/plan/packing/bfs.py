"""Best-fit on a shuffled order: each sample into the fullest pack that has room.

Source: Johnson 1973; at most 1.7 times the optimum (Dosa and Sgall 2014). Price: O(n), the kernel of `bfd`, sample by
sample; 12 bytes each. Use it, the default, if most samples are short against the capacity: which samples share a pack
depends on the shuffle, and it needs only a few packs in ten thousand more than `bfd`. Do not use it if most samples
are a tenth of the capacity or longer: late ones find no room, and `bfd` or `ilp` need a few per cent fewer packs.
"""

from __future__ import annotations

from functools import partial

from packer_cli.plan.core.csr import ONE_EACH, group_moves
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.best_fit import best_fit_each
from packer_cli.plan.packing.fit_needs import fit_needs


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by best-fit in seeded order; see the package for shapes."""
    order = shuffled(len(lengths), rng_state(seed))
    to_pack, num_packs = best_fit_each(lengths, order, capacity)
    del lengths
    return group_moves(to_pack, ONE_EACH, order, num_packs)


ALGORITHM = PackingAlgorithm(
    name="bfs",
    summary="best-fit on a shuffled order",
    pack=pack,
    pack_needs=partial(fit_needs, is_best=True, is_shuffled=True),
)
