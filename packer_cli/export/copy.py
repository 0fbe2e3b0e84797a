"""The one kernel of the exports: bytes from where they lie in mapped files to where they belong."""

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
    """Copy m spans of `source` to their places in `out`. O(bytes); the caller vouches that they lie inside.

    Args:
        source: uint8[b], read-only.
        begin, size: int64[m], bytes: where each span begins, and how long it is.
        target: int64[m]: where it goes in `out`.
    """
    for i in range(len(begin)):
        for j in range(size[i]):
            out[target[i] + j] = source[begin[i] + j]


def as_source(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array as `copy_bytes` reads them: a read-only view."""
    view = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    view.flags.writeable = False
    return view
