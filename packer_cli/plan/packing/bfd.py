"""Best-fit decreasing: the longest sample first, into the fullest pack that has room.

Source: Johnson 1973; at most 11/9 of the optimum + 4. Price: O(n), a counting sort and a bitmap of remaining
capacities. Use it for the least padding: on mixed lengths it is within a pack of the lower bound. Which samples
meet depends on their lengths alone, so packs are less random than `isf`'s.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.length_index import index_add, index_ceiling, index_remove, make_index
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.csr import group_by_pack
from packer_cli.plan.sorting import argsort_descending
from packer_cli.plan.types import Int32Array, Int64Array


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int64Array]:
    """See the package for shapes."""
    order = argsort_descending(lengths, capacity)
    pack_of, num_packs = best_fit(lengths, order, capacity)
    return group_by_pack(pack_of, order, num_packs)


@njit(cache=True)
def best_fit(lengths: NDArray[np.int32], order: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], int]:
    """`(pack int64[n], packs)`: each sample in the order given, into the fullest pack that has room."""
    words, starts = make_index(capacity + 1)
    # Packs with the same room form a stack: the last one touched is taken first.
    top = np.full(capacity + 1, -1, dtype=np.int64)
    below = np.empty(len(lengths), dtype=np.int64)
    pack_of = np.empty(len(lengths), dtype=np.int64)
    num_packs = 0
    for sample in order:
        length = lengths[sample]
        room = index_ceiling(words, starts, length)
        if room < 0:
            pack = num_packs
            num_packs += 1
            room = capacity
        else:
            pack = top[room]
            top[room] = below[pack]
            if top[room] < 0:
                index_remove(words, starts, room)
        pack_of[sample] = pack
        room -= length
        if room > 0:
            if top[room] < 0:
                index_add(words, starts, room)
            below[pack] = top[room]
            top[room] = pack
    return pack_of, num_packs


ALGORITHM = PackingAlgorithm(name="bfd", summary="best-fit decreasing: least padding", pack=pack)
