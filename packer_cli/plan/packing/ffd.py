"""First-fit decreasing: the longest sample first, into the first pack that has room.

Source: Johnson 1973; at most 11/9 of the optimum + 6/9 (Dosa 2007). Price: O(n log p), a tree of the greatest room.
Use it as the textbook reference; `bfd` pads as little and is faster.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.csr import group_by_pack
from packer_cli.plan.sorting import argsort_descending
from packer_cli.plan.types import Int32Array, Int64Array


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int64Array]:
    """See the package for shapes."""
    order = argsort_descending(lengths, capacity)
    pack_of, num_packs = first_fit(lengths, order, capacity)
    return group_by_pack(pack_of, order, num_packs)


@njit(cache=True)
def first_fit(lengths: NDArray[np.int32], order: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], int]:
    """`(pack int64[n], packs)`: each sample in the order given, into the first pack that has room."""
    total = 0
    for length in lengths:
        total += length
    # Two neighbouring packs hold more than one capacity, or the second would not have been opened.
    most_packs = min(2 * (total // capacity) + 2, max(1, len(lengths)))
    leaves = 1
    while leaves < most_packs:
        leaves *= 2
    room = np.full(2 * leaves, capacity, dtype=np.int64)
    pack_of = np.empty(len(lengths), dtype=np.int64)
    num_packs = 0
    for sample in order:
        length = lengths[sample]
        node = 1
        while node < leaves:
            node = 2 * node if room[2 * node] >= length else 2 * node + 1
        pack_of[sample] = node - leaves
        num_packs = max(num_packs, node - leaves + 1)
        room[node] -= length
        node //= 2
        while node:
            room[node] = max(room[2 * node], room[2 * node + 1])
            node //= 2
    return pack_of, num_packs


ALGORITHM = PackingAlgorithm(name="ffd", summary="first-fit decreasing", pack=pack)
