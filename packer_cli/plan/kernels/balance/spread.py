"""Deals samples to rows of even work: the longest first, to the row of least work that has room (LPT, Graham 1969)."""

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
    *,
    evens_tokens: bool = True,
) -> NDArray[np.int32]:
    """The row (int32[n]) of each sample; -1 where none had room. O(n * rows).

    Args:
        lengths: int32[n]
        order: int32[n], the samples by decreasing length.
        capacity: most tokens of a row.
        num_rows: rows to fill.
        linear: tokens, see `Cost.linear_tokens`.
        most: most samples of a row.
        evens_tokens: of rows with equal work, take the one with the fewest tokens, and not the first.
    """
    row_of = np.full(len(lengths), -1, dtype=np.int32)
    tokens, work, number = np.zeros((3, num_rows), dtype=np.int64)
    _spread(lengths, order, capacity, linear, most, evens_tokens, row_of, tokens, work, number)
    return row_of


@njit(cache=True)
def _spread(
    lengths: NDArray[np.int32],
    order: NDArray[np.int32],
    capacity: int,
    linear: int,
    most: int,
    evens_tokens: bool,
    row_of: NDArray[np.int32],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    number: NDArray[np.int64],
) -> None:
    """The kernel: writes to `row_of`, and to `tokens`, `work` and `number` of samples of each row, zeros at first."""
    for sample in order:
        length = np.int64(lengths[sample])
        best = -1
        for row in range(len(work)):
            if tokens[row] + length > capacity or number[row] >= most or (best >= 0 and work[row] > work[best]):
                continue
            if best < 0 or work[row] < work[best] or (evens_tokens and tokens[row] < tokens[best]):
                best = row
        if best >= 0:
            row_of[sample] = best
            tokens[best] += length
            number[best] += 1
            work[best] += length * (length + linear)
