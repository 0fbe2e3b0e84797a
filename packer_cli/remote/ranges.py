"""Which ranges of remote files to read: a request takes as long as some hundred KiB of bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

REQUEST_BYTES = 256 * 2**10
"""The bytes that take as long as one more request: about 2 ms of the CPU, and of a network of 1 Gbit/s."""
GAP_BYTES = 64 * 2**10
"""Most bytes between two ranges that are read as one. Below `REQUEST_BYTES`, as these bytes take memory."""

_FILE_BITS = 44
"""Files are smaller than 16 TiB."""


class Joined(NamedTuple):
    """k ranges that hold m spans."""

    file: Int64Array
    """int64[k]"""
    start: Int64Array
    """int64[k]"""
    stop: Int64Array
    """int64[k]"""
    range_of: Int64Array
    """int64[m]: the range that holds each span"""


def join_spans(file: Int64Array, start: Int64Array, stop: Int64Array, gap: int) -> Joined:
    """The ranges to read for m spans of files, in order of file and start. O(m log m).

    Args:
        file, start, stop: int64[m]; spans may overlap.
        gap: spans of a file with at most this many bytes between them share a range.

    >>> joined = join_spans(np.array([1, 0, 1]), np.array([50, 7, 10]), np.array([60, 9, 45]), gap=5)
    >>> [each.tolist() for each in joined]
    [[0, 1], [7, 10], [9, 60], [1, 0, 1]]
    """
    order = np.lexsort((start, file))
    first, last = (file << _FILE_BITS | start)[order], (file << _FILE_BITS | stop)[order]
    reach = np.maximum.accumulate(last)
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = first[1:] > reach[:-1] + gap
    at = np.flatnonzero(begins)
    range_of = np.empty(len(order), dtype=np.int64)
    range_of[order] = np.cumsum(begins) - 1
    ends = np.concatenate([at[1:], [len(order)]])[: len(at)] - 1
    in_file = (1 << _FILE_BITS) - 1
    return Joined(first[at] >> _FILE_BITS, first[at] & in_file, reach[ends] & in_file, range_of)
