"""Spreads a group's last packs, too few for all ranks, over lighter rows for every rank."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.groups import UNLIMITED


def spread(
    lengths: NDArray[np.int32],
    order: NDArray[np.int32],
    capacity: int,
    num_rows: int,
    linear: int = 0,
    most: int = UNLIMITED,
) -> tuple[NDArray[np.int32], bool]:
    """Deal samples to rows of even work: the longest sample first, to the row with the least work that has room.

    The rule is Graham's LPT with a capacity. O(n * rows).

    Args:
        lengths: int32[n]
        order: int32[n], the samples by decreasing length.
        capacity: most tokens of a row.
        num_rows: rows to fill.
        linear: tokens, see `Cost.linear_tokens`.
        most: most samples of a row.

    Returns:
        `(row int32[n], fits)`; `fits` is False if some sample found no row; `row` is then incomplete.
    """
    row_of = np.full(len(lengths), -1, dtype=np.int32)
    tokens, work, number = np.zeros((3, num_rows), dtype=np.int64)
    return row_of, bool(_spread(lengths, order, capacity, linear, most, row_of, tokens, work, number))


@njit(cache=True)
def _spread(
    lengths: NDArray[np.int32],
    order: NDArray[np.int32],
    capacity: int,
    linear: int,
    most: int,
    row_of: NDArray[np.int32],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    number: NDArray[np.int64],
) -> bool:
    """The kernel: writes to `row_of`, and to `tokens`, `work` and `number` of samples of each row, zeros at first."""
    for i in range(len(order)):
        sample = order[i]
        length = np.int64(lengths[sample])
        best = -1
        for row in range(len(work)):
            if (
                tokens[row] + length <= capacity
                and number[row] < most
                and (best < 0 or work[row] < work[best] or (work[row] == work[best] and tokens[row] < tokens[best]))
            ):
                best = row
        if best < 0:
            return False
        row_of[sample] = best
        tokens[best] += length
        number[best] += 1
        work[best] += length * (length + linear)
    return True
