"""Next-fit: take samples in order, and close the pack when the next one does not fit.

Source: Johnson 1973. Price: O(n), one pass. Use it to keep the order of the corpus; it pads the most (up to half of
every pack if samples are long).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by next-fit in the data's order; see the package for shapes."""
    return next_fit(lengths, capacity), np.arange(len(lengths), dtype=np.int32)


@njit(cache=True)
def next_fit(lengths: NDArray[np.int32], capacity: int) -> NDArray[np.int64]:
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


ALGORITHM = PackingAlgorithm(name="next-fit", summary="in the order of the corpus; pads most", pack=pack)
