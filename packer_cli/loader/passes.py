"""The passes over a pack's tokens: each writes its output once, at the speed of memory. Pure numpy.

Wide output (int64) is computed in narrow types, so that intermediate values stay in the core's own cache, and widened
in the last pass. The code for few and for many samples gives the same values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from packer_cli.format.shards import Pack

Integers = npt.NDArray[np.integer[Any]]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

IGNORE_INDEX = np.int32(-100)

_FEW_SEGMENTS = 8

_ramp = np.arange(16_384, dtype=np.int32)


def ramp(length: int) -> Int32Array:
    """Return 0, 1, 2, ... int32 [length], a view of one array that grows with the longest row; do not write to it."""
    global _ramp
    found = _ramp
    if len(found) < length:
        found = _ramp = np.arange(1 << (length - 1).bit_length(), dtype=np.int32)
    return found[:length]


def write_positions(cu_seqlens: Int32Array, start: int, out: Int64Array) -> None:
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
    input_ids: Integers, loss_starts: Integers, loss_stops: Integers, firsts: Integers, out: Int64Array
) -> None:
    """Write to `out`, int64 [t], the id of each token with loss, and -100 for others and at `firsts`.

    Args:
        input_ids: uint16 or int32 [t], not negative.
        loss_starts, loss_stops: [s], spans of these tokens, in order; they may touch or be empty.
        firsts: places of samples' first tokens. The format has no loss there, but an error in a shard would leak one
            sample into another.
    """
    if len(loss_starts) <= _FEW_SEGMENTS:
        out[:] = input_ids
        begin = 0
        for start, stop in zip(loss_starts.tolist(), loss_stops.tolist(), strict=True):
            out[begin:start] = IGNORE_INDEX
            begin = stop
        out[begin:] = IGNORE_INDEX
    else:
        borders = np.zeros(2 * len(loss_starts) + 2, dtype=np.int64)
        borders[1:-1:2], borders[2:-1:2], borders[-1] = loss_starts, loss_stops, len(input_ids)
        hidden = np.zeros(len(borders) - 1, dtype=np.int32)
        hidden[::2] = IGNORE_INDEX
        # 0 or -100. As unsigned numbers, -100 is greater than any id, so the maximum is the label, without a branch.
        labels = hidden.repeat(borders[1:] - borders[:-1])
        unsigned = labels.view(np.uint32)
        np.maximum(unsigned, input_ids.astype(np.int32, copy=False).view(np.uint32), out=unsigned)
        out[:] = labels
    out.put(firsts, IGNORE_INDEX)


def cut_spans(starts: Integers, stops: Integers, start: int, stop: int) -> tuple[Integers, Integers]:
    """Cut these spans to what lies between the tokens `start` and `stop`, counted from `start`."""
    if start:
        first = int(stops.searchsorted(start, "right"))
        starts, stops = np.maximum(starts[first:] - start, 0), stops[first:] - start
    last = int(starts.searchsorted(stop - start))
    return starts[:last], np.minimum(stops[:last], stop - start)


def count_loss_tokens(
    loss_starts: Integers, loss_stops: Integers, cu_seqlens: Int32Array, num_loss_tokens: int
) -> Int64Array:
    """Count the loss tokens of each sample, int64 [n].

    Args:
        loss_starts, loss_stops: [s], spans, each within a sample, in order.
        cu_seqlens: int32 [n+1], from 0 to t.
        num_loss_tokens: of all samples.
    """
    if len(cu_seqlens) == 2:
        return np.array([num_loss_tokens])
    ends = np.zeros(len(loss_starts) + 1, dtype=np.int64)
    (loss_stops - loss_starts).cumsum(out=ends[1:])
    before = ends.take(loss_starts.searchsorted(cu_seqlens))
    return before[1:] - before[:-1]


def align_samples(pack: Pack, multiple: int, pad_token_id: int) -> Pack:
    """Pad each sample of a pack to a multiple of `multiple`; the padding is part of the sample's segment."""
    lengths = pack.cu_seqlens[1:] - pack.cu_seqlens[:-1]
    cu_seqlens = np.zeros_like(pack.cu_seqlens)
    np.cumsum(-(-lengths // multiple) * multiple, out=cu_seqlens[1:])
    input_ids = np.full(cu_seqlens[-1], pad_token_id, dtype=pack.input_ids.dtype)
    begins = pack.cu_seqlens.tolist()
    for begin, end, to in zip(begins, begins[1:], cu_seqlens.tolist(), strict=False):
        input_ids[to : to + end - begin] = pack.input_ids[begin:end]
    moved = (cu_seqlens - pack.cu_seqlens)[pack.cu_seqlens.searchsorted(pack.loss_starts, "right") - 1]
    starts, stops = pack.loss_starts + moved, pack.loss_stops + moved
    return pack._replace(input_ids=input_ids, loss_starts=starts, loss_stops=stops, cu_seqlens=cu_seqlens)


def with_padding(cu_seqlens: np.ndarray, length: int) -> np.ndarray:
    """Copy `cu_seqlens`, with one more segment if it ends before `length`."""
    if cu_seqlens[-1] == length:
        return cu_seqlens.copy()
    padded = np.empty(len(cu_seqlens) + 1, dtype=np.int32)
    padded[:-1] = cu_seqlens
    padded[-1] = length
    return padded
