"""The exports' kernel, which copies bytes from mapped files to their destination."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def copy_bytes(
    source: NDArray[np.uint8],
    begin: NDArray[np.int64],
    size: NDArray[np.int64],
    target: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy m spans of `source` into `out`. O(bytes); the caller guarantees that they are in range.

    Args:
        source: uint8[b], read-only.
        begin, size: int64[m], bytes: where each span begins, and how long it is.
        target: int64[m]: where it goes in `out`.
    """
    for i in range(len(begin)):
        for j in range(size[i]):
            out[target[i] + j] = source[begin[i] + j]


def as_source(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array as a read-only view, as `copy_bytes` expects."""
    view = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    view.flags.writeable = False
    return view
