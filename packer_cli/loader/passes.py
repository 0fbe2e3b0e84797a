"""The passes over a pack's tokens: each writes its output once, at the speed of memory. Pure numpy.

Wide output (int64) is computed in narrow types, so that intermediate values stay in the core's own cache, and widened
in the last pass. The code for few and for many samples gives the same values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

IGNORE_INDEX = np.int32(-100)

_ONE, _IGNORE_BYTE = np.int8(1), np.int8(IGNORE_INDEX)
_FEW_SEGMENTS = 8
_LONG_SAMPLE = 1024
"""Tokens. Longer samples are counted one by one: a call of numpy costs as much as this many tokens in `reduceat`."""

_ramp = np.arange(16_384, dtype=np.int32)


def ramp(length: int) -> npt.NDArray[np.int32]:
    """0, 1, 2, ... int32 [length], a view of one array that grows with the longest row; do not write to it."""
    global _ramp
    found = _ramp
    if len(found) < length:
        found = _ramp = np.arange(1 << (length - 1).bit_length(), dtype=np.int32)
    return found[:length]


def write_positions(cu_seqlens: npt.NDArray[np.int32], start: int, out: npt.NDArray[np.int64]) -> None:
    """Write to `out`, int64 [t], the place in its segment of each token of the row from `start` on.

    Args:
        cu_seqlens: int32 [segments+1], from 0 to at least start + t; segments may be empty.
    """
    stop = start + len(out)
    first, last = 0, len(cu_seqlens) - 1
    if last == 1:
        out[:] = ramp(stop)[start:]
        return
    if start or cu_seqlens[-1] != stop:
        first = int(cu_seqlens.searchsorted(start, "right")) - 1
        last = int(cu_seqlens.searchsorted(stop))
    if last - first <= _FEW_SEGMENTS:
        borders = cu_seqlens[first : last + 1].tolist()
        for begin, end in pairwise(borders):
            low, high = max(begin, start), min(end, stop)
            out[low - start : high - start] = ramp(high - begin)[low - begin :]
        return
    borders = cu_seqlens[first : last + 1]
    if borders[0] != start or borders[-1] != stop:
        borders = borders.copy()
        borders[0], borders[-1] = start, stop
    places = cu_seqlens[first:last].repeat(borders[1:] - borders[:-1])
    np.subtract(ramp(stop)[start:], places, out=places)
    out[:] = places


def write_labels(
    input_ids: npt.NDArray[np.int32],
    loss_mask: npt.NDArray[np.int8],
    firsts: npt.NDArray[np.integer[Any]],
    out: npt.NDArray[np.int64],
) -> None:
    """Write to `out`, int64 [t], the id of each token with loss, and -100 for others and at `firsts`.

    Args:
        input_ids: [t], not negative.
        loss_mask: [t], 0 or 1.
        firsts: places of samples' first tokens. The format has no loss there, but an error in a shard would leak one
            sample into another.
    """
    hidden = loss_mask - _ONE
    hidden &= _IGNORE_BYTE
    hidden.put(firsts, _IGNORE_BYTE)
    # 0 or -100. As unsigned numbers, -100 is greater than any id, so the maximum is the label, without a branch.
    labels = hidden.astype(np.int32)
    unsigned = labels.view(np.uint32)
    np.maximum(unsigned, input_ids.view(np.uint32), out=unsigned)
    out[:] = labels


def count_loss_tokens(
    loss_mask: npt.NDArray[np.int8],
    cu_seqlens: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    num_loss_tokens: int,
) -> npt.NDArray[np.int64]:
    """int64 [n]: loss tokens of each sample; no sample may be empty.

    Args:
        loss_mask: [t], 0 or 1.
        cu_seqlens: int32 [n+1], from 0 to t.
        lengths: int64 [n], the differences of `cu_seqlens`.
        num_loss_tokens: of all samples. The longest sample gets what the others leave, so that a rank with another
            part of a long row need not read that sample's mask, which is most of the row's.
    """
    if len(lengths) == 1:
        return np.array([num_loss_tokens])
    if len(loss_mask) <= _LONG_SAMPLE * len(lengths):
        # The narrower the sums, the faster; they must hold the tokens of a pack.
        dtype = np.int16 if len(loss_mask) < 2**15 else np.int32
        return np.add.reduceat(loss_mask, cu_seqlens[:-1], dtype=dtype).astype(np.int64)
    has_loss, longest = loss_mask.view(np.bool_), int(lengths.argmax())
    counts = [
        0 if number == longest else np.count_nonzero(has_loss[a:b])
        for number, (a, b) in enumerate(pairwise(cu_seqlens.tolist()))
    ]
    counts[longest] = num_loss_tokens - sum(counts)
    return np.array(counts, dtype=np.int64)
