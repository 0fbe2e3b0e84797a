"""The segments of a row: samples padded to a multiple, cut at a window, and padding at the end."""

from __future__ import annotations

import numpy as np

from packer_cli.loader.passes import ramp
from packer_cli.loader.shards import Pack


def align_samples(pack: Pack, multiple: int, pad_token_id: int) -> Pack:
    """The pack with each sample padded to a multiple of `multiple`; the padding is part of the sample's segment."""
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


def cut_segments(borders: np.ndarray, lengths: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Segments cut every `window` tokens: (borders int32 [x+1], real tokens of each int64, without the last ones).

    Args:
        borders: int32 [segments+1].
        lengths: int64, the real tokens of each segment but for the last ones; padding of a segment is at its end.
    """
    sizes = borders[1:] - borders[:-1]
    counts = -(-sizes // window)
    first = counts.cumsum() - counts
    number = ramp(int(counts.sum())) - first.repeat(counts)
    cut = np.empty(len(number) + 1, dtype=np.int32)
    cut[:-1] = borders[:-1].repeat(counts) + number * window
    cut[-1] = borders[-1]
    real = counts[: len(lengths)]
    left = lengths.repeat(real) - number[: int(real.sum())].astype(np.int64) * window
    return cut, left.clip(0, window)


def with_padding(cu_seqlens: np.ndarray, length: int) -> np.ndarray:
    """A copy of `cu_seqlens`, with one more segment if it ends before `length`."""
    if cu_seqlens[-1] == length:
        return cu_seqlens.copy()
    padded = np.empty(len(cu_seqlens) + 1, dtype=np.int32)
    padded[:-1] = cu_seqlens
    padded[-1] = length
    return padded
