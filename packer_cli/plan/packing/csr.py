"""From a pack number for every sample to compressed arrays."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def group_by_pack(
    pack_of: NDArray[np.int64], order: NDArray[np.int64], num_packs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`(offsets int64[p+1], members int64[n])`; within a pack, samples stand as in `order`. O(n + p).

    Args:
        pack_of: int64[n], pack of each sample.
        order: int64[n], the samples in the order in which they were placed.
        num_packs: p.
    """
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    for pack in pack_of:
        offsets[pack + 1] += 1
    for k in range(num_packs):
        offsets[k + 1] += offsets[k]
    place = offsets[:-1].copy()
    members = np.empty(len(order), dtype=np.int64)
    for sample in order:
        pack = pack_of[sample]
        members[place[pack]] = sample
        place[pack] += 1
    return offsets, members
