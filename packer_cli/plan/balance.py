"""Balance batching: iterations of packs with nearly equal attention work (HBP, algorithm 7).

The packs of a group are sorted by attention work, and consecutive packs form an iteration. Price: O(p log p). A
global sort puts alike packs together; the order of the iterations is shuffled afterwards.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.random import shuffle
from packer_cli.plan.types import Int64Array


def sort_by_work(work: Int64Array, state: NDArray[np.uint64]) -> Int64Array:
    """Packs (int64[p]) by falling attention work; equal ones in seeded order."""
    order = np.arange(len(work), dtype=np.int64)
    shuffle(order, state)
    return order[np.argsort(-work[order], kind="stable")]


@njit(cache=True)
def spread(
    lengths: NDArray[np.int32], order: NDArray[np.int64], capacity: int, num_rows: int
) -> tuple[NDArray[np.int64], bool]:
    """Deal samples over rows so that attention work is even: the longest first, to the row of least work with room.

    It turns a group's last packs, too few for all ranks, into one lighter row for each rank. The rule is Graham's LPT
    with a capacity. O(n * rows).

    Args:
        lengths: int32[n]
        order: int64[n], the samples by falling length.
        capacity: most tokens of a row.
        num_rows: rows to fill.

    Returns:
        `(row int64[n], fits)`; `fits` is False where some sample found no row, and `row` is then of no use.
    """
    tokens = np.zeros(num_rows, dtype=np.int64)
    work = np.zeros(num_rows, dtype=np.int64)
    row_of = np.full(len(lengths), -1, dtype=np.int64)
    for sample in order:
        length = np.int64(lengths[sample])
        best = -1
        for row in range(num_rows):
            if tokens[row] + length <= capacity and (
                best < 0 or work[row] < work[best] or (work[row] == work[best] and tokens[row] < tokens[best])
            ):
                best = row
        if best < 0:
            return row_of, False
        row_of[sample] = best
        tokens[best] += length
        work[best] += length * length
    return row_of, True
