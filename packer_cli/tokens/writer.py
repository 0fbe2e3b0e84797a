"""Writes a part of the token store. No kernels here: workers that only tokenize need not load numba."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.corpus.ragged import join_samples
from packer_cli.corpus.types import Gap, Reject, TokenBatch
from packer_cli.engine.sink import Sink
from packer_cli.errors import FormatError
from packer_cli.files import HashingFile
from packer_cli.format.arrays import to_arrow, to_lists
from packer_cli.format.checksums import find_damage
from packer_cli.format.loss_spans import count_by_row, mask_to_spans
from packer_cli.format.schema import part_schema
from packer_cli.tokens.index import INDEX_NAME, remedy
from packer_cli.tokens.slices import LINE_BITS, count_by_slice, lines_of, with_lines

_TOKENS_PER_BATCH = 2**22


class LateWeightsError(Exception):
    """Weights came after record batches without them were written: begin the part again, with `is_weighted`."""


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
        self._waiting: list[TokenBatch] = []
        self._num_waiting = 0
        self.num_samples = 0
        self.num_tokens = 0
        self.num_loss_tokens = 0
        self.loss_weight: float | None = None
        """Sum of the weights of loss tokens; None if they have none."""

    def write(self, samples: TokenBatch) -> None:
        """Append samples; `lines` are their keys, see `packer_cli.tokens.slices`, and rise from call to call.

        Small batches are gathered into record batches of a few million tokens.

        Raises:
            LateWeightsError: see there.
        """
        self._waiting.append(samples._replace(input_ids=samples.input_ids.astype(self._token, copy=False)))
        self._num_waiting += len(samples.input_ids)
        if self._num_waiting >= _TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        samples = join_samples(self._waiting)
        self._waiting, self._num_waiting = [], 0
        starts, stops, num_spans, weights = _loss_spans(samples)
        writer, schema = self._open(has_weights=bool((weights != 1).any()))
        span_ends = np.concatenate([[0], np.cumsum(num_spans)])
        num_loss_tokens = count_by_row(starts, stops, span_ends).astype(np.int32)
        columns = [
            to_lists(samples.offsets, samples.input_ids),
            to_lists(span_ends, starts),
            to_lists(span_ends, stops),
            *([to_lists(span_ends, weights)] if self._is_weighted else []),
            to_arrow(num_loss_tokens),
            to_arrow(lines_of(samples.lines)),
        ]
        writer.write_batch(pa.record_batch(columns, schema=schema))
        self.num_samples += len(samples.lines)
        self.num_tokens += len(samples.input_ids)
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


def _loss_spans(
    batch: TokenBatch,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Of all samples: starts and stops (int32[s]) in their sample; the spans of each sample (int64[n]); and the weight
    of each span (float32[s], in no memory where all are 1). O(t).
    """
    begins, ends = batch.offsets[:-1], batch.offsets[1:]
    weights = None
    if batch.loss_mask is None:
        starts, stops = begins + 1, ends
        starts, stops = starts[starts < stops], stops[starts < stops]
    else:
        starts, stops, values = mask_to_spans(batch.loss_mask, batch.offsets)
        weights = values if values.dtype == np.float32 else None
    if weights is None:
        weights = np.broadcast_to(np.float32(1), len(starts))
    num_spans = np.diff(np.searchsorted(starts, batch.offsets))
    begin = np.repeat(begins, num_spans)
    return (starts - begin).astype(np.int32), (stops - begin).astype(np.int32), num_spans, weights


def rejects_name(name: str) -> str:
    """File name of a part's rejected records; the file exists only if there are any."""
    return name.replace("part-", "rejected-").replace(".arrow", ".jsonl")


class RejectsWriter(ExitStack):
    """Writes a part's rejected records as they come, and counts them. Memory: one batch of them."""

    def __init__(self, sink: Sink, part: str, num_slices: int) -> None:
        """Open no file before there is a reject.

        Args:
            part: file name of the part.
            num_slices: of input, in the part.
        """
        super().__init__()
        self.num_rejected = np.zeros(num_slices, dtype=np.int64)
        """int64[s]: of each slice."""
        self.gaps = [""] * num_slices
        """The reason of each slice's first gap; "" for a slice that has none."""
        self._sink, self._name = sink, rejects_name(part)
        self._file: HashingFile | None = None

    def write(self, rejects: Sequence[Reject]) -> None:
        """Append the rejects of the next batch; `line` is their key, see `packer_cli.tokens.slices`."""
        if not rejects:
            return
        if self._file is None:
            self._file = self.enter_context(self._sink.file(self._name))
        keys = np.array([reject.line for reject in rejects], dtype=np.int64)
        self.num_rejected += count_by_slice(keys, len(self.num_rejected))
        for reject in rejects:
            if isinstance(reject, Gap):
                number = reject.line >> LINE_BITS
                self.gaps[number] = self.gaps[number] or reject.reason
        lines = [json.dumps(reject._asdict(), ensure_ascii=False) + "\n" for reject in with_lines(rejects)]
        self._file.write("".join(lines).encode())

    @property
    def xxh3(self) -> str | None:
        """Checksum of the file; None if there are no rejects."""
        return None if self._file is None else self._file.hexdigest()


def read_rejects(path: Path, xxh3: str) -> Iterator[Reject]:
    """Yield the rejected records of a part, file by file. Price: reading the file twice, as it is checked first.

    Args:
        xxh3: checksum of the file.

    Raises:
        FormatError: the file is missing or damaged.
    """
    why = find_damage(path, None, xxh3, INDEX_NAME)
    if why is not None:
        raise FormatError(f"{str(path)!r} is damaged ({why}); {remedy(path)}")
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield Reject(**json.loads(line))
