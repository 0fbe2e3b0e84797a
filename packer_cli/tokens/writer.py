"""Writes a part of the token store. No kernels here: workers that only tokenize need not load numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import to_arrow, to_lists
from packer_cli.format.loss_spans import count_by_row, mask_to_spans, weights_to_spans
from packer_cli.format.schema import part_schema

if TYPE_CHECKING:
    from packer_cli.files import HashingFile
    from packer_cli.tokens.types import EncodedBatch

_TOKENS_PER_BATCH = 2**22


class LateWeightsError(Exception):
    """Weights came after record batches without them were written: begin the part again, with `is_weighted`."""


class _Waiting(NamedTuple):
    """Samples of a batch as they will be stored: n samples, t tokens, s loss spans. Half the memory of the batch."""

    input_ids: NDArray[Any]
    """[t], of the store's type"""
    lines: NDArray[np.int64]
    """int64[n]"""
    lengths: NDArray[np.int64]
    """int64[n]: tokens of each sample"""
    starts: NDArray[np.int32]
    """int32[s], in their sample"""
    stops: NDArray[np.int32]
    """int32[s]"""
    num_spans: NDArray[np.int64]
    """int64[n]: spans of each sample"""
    weights: NDArray[np.float32]
    """float32[s]; in no memory where all are 1"""


class PartWriter:
    """Writes the batches of one part to an open file.

    Args:
        token: the type of its ids, which must hold all of them.
        is_weighted: whether loss tokens have weights; by default, those of the first few million tokens decide.
    """

    def __init__(self, file: HashingFile, token: pa.DataType, *, is_weighted: bool = False) -> None:
        self._token_type = token
        self._token = np.dtype(str(token))
        self._file = file
        self._is_weighted = is_weighted
        self._writer: pa.RecordBatchWriter | None = None
        self._waiting: list[_Waiting] = []
        self._num_waiting = 0
        self.num_samples = 0
        self.num_tokens = 0
        self.num_loss_tokens = 0
        self.loss_weight: float | None = None
        """Sum of the weights of loss tokens; None if they have none."""

    def write(self, batch: EncodedBatch) -> None:
        """Append the samples of a batch. Small batches are gathered into record batches of a few million tokens.

        Raises:
            LateWeightsError: see there.
        """
        ids = batch.input_ids.astype(self._token, copy=False)
        self._waiting.append(_Waiting(ids, batch.lines, np.diff(batch.offsets), *_loss_spans(batch)))
        self._num_waiting += len(batch.input_ids)
        if self._num_waiting >= _TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        joined = _Waiting(*map(_joined, zip(*self._waiting, strict=True)))
        self._waiting, self._num_waiting = [], 0
        input_ids, lines, lengths, starts, stops, num_spans, weights = joined
        writer, schema = self._open(has_weights=bool((weights != 1).any()))
        ends, span_ends = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (lengths, num_spans))
        num_loss_tokens = count_by_row(starts, stops, span_ends).astype(np.int32)
        columns = [
            to_lists(ends, input_ids),
            to_lists(span_ends, starts),
            to_lists(span_ends, stops),
            *([to_lists(span_ends, weights)] if self._is_weighted else []),
            to_arrow(num_loss_tokens),
            to_arrow(lines),
        ]
        writer.write_batch(pa.record_batch(columns, schema=schema))
        self.num_samples += len(lines)
        self.num_tokens += len(input_ids)
        self.num_loss_tokens += int(num_loss_tokens.sum())
        if self._is_weighted:
            sums = (stops - starts) * weights.astype(np.float64)
            self.loss_weight = (self.loss_weight or 0.0) + float(sums.sum())

    def _open(self, *, has_weights: bool) -> tuple[pa.RecordBatchWriter, pa.Schema]:
        """What writes record batches, which either all have weights or none has."""
        if self._writer is None:
            self._is_weighted |= has_weights
        elif has_weights and not self._is_weighted:
            raise LateWeightsError
        schema = part_schema(self._token_type, is_weighted=self._is_weighted)
        if self._writer is None:
            self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema)
        return self._writer, schema

    def close(self) -> None:
        """Write the remaining samples and the footer."""
        self._flush()
        self._open(has_weights=False)[0].close()


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _loss_spans(
    batch: EncodedBatch,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Of all samples: starts and stops (int32[s]) in their sample; the spans of each sample (int64[n]); and the weight
    of each span (float32[s], in no memory where all are 1). O(t).
    """
    begins, ends = batch.offsets[:-1], batch.offsets[1:]
    weights = None
    if batch.loss_mask is None:
        starts, stops = begins + 1, ends
        starts, stops = starts[starts < stops], stops[starts < stops]
    elif batch.loss_mask.dtype == np.float32:
        starts, stops, weights = weights_to_spans(batch.loss_mask, batch.offsets)
    else:
        starts, stops = mask_to_spans(batch.loss_mask, batch.offsets)
    if weights is None:
        weights = np.broadcast_to(np.float32(1), len(starts))
    num_spans = np.diff(np.searchsorted(starts, batch.offsets))
    begin = np.repeat(begins, num_spans)
    return (starts - begin).astype(np.int32), (stops - begin).astype(np.int32), num_spans, weights
