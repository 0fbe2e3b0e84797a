"""Tokens and work of all packs of a plan: a numba kernel. `cost.py`, which defines work, needs no numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.segments import row_lengths
from packer_cli.plan.core.types import Plan, read_only


def pack_tokens_and_work(
    offsets: NDArray[np.int64], pieces: NDArray[np.int32], lengths: NDArray[np.int32], linear: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and work of each pack, both int64[p]. Work is the sum of s (s + linear); HBP section 3.1 has linear = 0.

    Price: O(m).

    Args:
        offsets, pieces: the packs as CSR arrays, int64[p+1] and int32[m].
        lengths: int32, length of each piece.
        linear: tokens, see `Cost.linear_tokens`.
    """
    tokens = np.empty(len(offsets) - 1, dtype=np.int64)
    work = np.empty(len(offsets) - 1, dtype=np.int64)
    _add_up(read_only(offsets), read_only(pieces), read_only(lengths), tokens, work)
    if linear:
        work += linear * tokens
    return tokens, work


def plan_tokens_and_work(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens, with padding that aligns samples, and attention work of each pack of a plan (int64[p] both). O(m).

    Work is the sum of squares of the aligned samples or, with a causal mask over whole rows, the square of the tokens.
    """
    lengths = row_lengths(plan)
    tokens, work = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, lengths)
    return tokens, work if plan.mask == "document" else tokens * tokens


@njit(cache=True)
def _add_up(
    offsets: NDArray[np.int64],
    pieces: NDArray[np.int32],
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
