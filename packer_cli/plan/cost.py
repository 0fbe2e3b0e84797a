"""Work of packs: attention costs the square of each sample's length, not of the pack's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.types import Int64Array, read_only


def pack_tokens_and_work(
    offsets: NDArray[np.int64], pieces: NDArray[np.int64], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and attention work (sum of s^2, HBP section 3.1) of each pack, int64[p] both. O(m).

    Args:
        offsets, pieces: packs as compressed arrays, int64[p+1] and int64[m].
        lengths: int32, length of each piece.
    """
    tokens = np.empty(len(offsets) - 1, dtype=np.int64)
    work = np.empty(len(offsets) - 1, dtype=np.int64)
    _add_up(read_only(offsets), read_only(pieces), read_only(lengths), tokens, work)
    return tokens, work


@njit(cache=True)
def _add_up(
    offsets: NDArray[np.int64],
    pieces: NDArray[np.int64],
    lengths: NDArray[np.int32],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
) -> None:
    for k in range(len(tokens)):
        pack_tokens = pack_work = np.int64(0)
        for j in range(offsets[k], offsets[k + 1]):
            length = np.int64(lengths[pieces[j]])
            pack_tokens += length
            pack_work += length * length
        tokens[k] = pack_tokens
        work[k] = pack_work


def segment_sums(values: NDArray[Any], offsets: Int64Array) -> Int64Array:
    """Sum (int64[p]) of each segment `values[offsets[k]:offsets[k+1]]`; empty segments give 0."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return sums[offsets[1:]] - sums[offsets[:-1]]
