"""Reads a token store, for planning and gathering.

A sample's id is its row number over all parts in order. The parts are memory-mapped: opening the store reads only
lengths, and gathering a pack copies only its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.loss_spans import Int64Array
from packer_cli.format.token_parts import PartBatch, clip_spans
from packer_cli.tokens.index import StoreIndex, open_part, read_index
from packer_cli.tokens.spans import copy_spans


class Gathered(NamedTuple):
    """Pieces of samples, one after another: t tokens, s loss spans."""

    input_ids: NDArray[Any]
    """uint16 or int32 [t], as in the store"""
    loss_starts: Int64Array
    """int64[s], positions among these tokens"""
    loss_stops: Int64Array
    """int64[s]"""

    def spans_by_row(self, token_offsets: Int64Array) -> tuple[Int64Array, NDArray[np.int32], NDArray[np.int32]]:
        """Offsets (int64[r+1]), starts and stops (int32[s]) of the spans of each row, as positions in the row.

        Args:
            token_offsets: int64[r+1]: where the tokens of each row begin; rows are whole pieces.
        """
        offsets = np.searchsorted(self.loss_starts, token_offsets)
        begin = np.repeat(token_offsets[:-1], np.diff(offsets))
        return offsets, (self.loss_starts - begin).astype(np.int32), (self.loss_stops - begin).astype(np.int32)


class TokenStore:
    """A token store, opened for planning and gathering."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._token: np.dtype[Any] = np.dtype(str(index.token_type))
        self._batches = [
            PartBatch(batch) for part in index.parts for batch in open_part(folder, part, index.token_type)
        ]
        self._lock = Lock()
        self._made_rows: _Rows | None = None
        self._ids = [pa.py_buffer(batch.input_ids) for batch in self._batches]
        counts = [len(batch.offsets) - 1 for batch in self._batches]
        self._first_sample = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._files = [file for part in index.parts for file in part.files]
        self._num_samples = np.array([file.num_samples for file in self._files], dtype=np.int64)
        self._source = np.array([file.source for file in self._files], dtype=np.int32)

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Open the store in a folder.

        Raises:
            InputError: the folder holds no finished store.
            FormatError: the store is damaged, or has another version.
        """
        return cls(folder, read_index(folder))

    def __len__(self) -> int:
        return int(self._first_sample[-1])

    def lengths(self) -> NDArray[np.int32]:
        """int32[n]: tokens of each sample."""
        return _join([np.diff(batch.offsets) for batch in self._batches], np.int32)

    def num_loss_tokens(self) -> NDArray[np.int32]:
        """int32[n]: loss tokens of each sample, its first token not counted."""
        return _join([batch.num_loss_tokens for batch in self._batches], np.int32)

    def sources_of(self, sample: NDArray[np.integer]) -> NDArray[np.int32]:
        """int32[m]: source of each of these samples."""
        return self._source[self._file_of(sample)]

    def sources(self) -> NDArray[np.signedinteger[Any]]:
        """int[n]: source of every sample, read-only; of the smallest type, and of no memory for one source."""
        first, last = int(self._source.min(initial=2**31 - 1)), int(self._source.max(initial=0))
        if first >= last:
            return np.broadcast_to(np.int8(0) if not len(self) else np.int32(last), len(self))
        dtype = next(kind for kind in (np.int8, np.int16, np.int32) if last <= np.iinfo(kind).max)
        sources = np.repeat(self._source.astype(dtype), self._num_samples)
        sources.flags.writeable = False
        return sources

    def _file_of(self, sample: NDArray[np.integer]) -> NDArray[np.int64]:
        return np.searchsorted(np.cumsum(self._num_samples), sample, side="right")

    def locate(self, sample: NDArray[np.integer]) -> Iterator[tuple[str, int]]:
        """Yield the input file and line of each sample. `sample` (int[m]) must be increasing."""
        first = np.searchsorted(sample, self._first_sample)
        for number, batch in enumerate(self._batches):
            own = sample[first[number] : first[number + 1]]
            if len(own):
                lines = batch.lines[own - self._first_sample[number]].tolist()
                for line, file in zip(lines, self._file_of(own).tolist(), strict=True):
                    yield self._files[file].path, line

    def loss_tokens_of(
        self, sample: NDArray[np.integer], start: NDArray[np.integer], length: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Loss tokens (int32[m]) of pieces of samples, without the first token of each. O(their samples' spans)."""
        starts, stops, piece = self._loss_spans(*self._find(sample), start, length)
        counts = np.zeros(len(sample), dtype=np.int32)
        np.add.at(counts, piece, (stops - starts).astype(np.int32))
        return counts

    def gather(self, sample: NDArray[np.integer], start: NDArray[np.integer], length: NDArray[np.int32]) -> Gathered:
        """Pieces one after another, without a loss at the first token of each. O(tokens).

        Raises:
            FormatError: a piece reaches past the end of its sample, so the store is not the planned one.
        """
        offsets, (batch, row) = self._rows.offsets, self._find(sample)
        begin, size = np.add(offsets[row], start, dtype=np.int64), length.astype(np.int64)
        if (begin + size > offsets[row + 1]).any():
            raise FormatError(f"token store {str(self.folder)!r}: a sample is shorter than planned; tokenize again")
        width = self._token.itemsize
        input_ids = copy_spans(self._ids, batch, width * begin, width * size).view(self._token)
        starts, stops, piece = self._loss_spans(batch, row, start, length)
        place = (np.cumsum(size) - size)[piece]
        return Gathered(input_ids, starts + place, stops + place)

    def _loss_spans(
        self, batch: Int64Array, row: Int64Array, start: NDArray[np.integer], length: NDArray[np.int32]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Loss spans of pieces, without the first token of each: starts, stops (in the piece) and piece, int64[s]."""
        rows = self._rows
        num = rows.span_offsets[row + 1] - rows.span_offsets[row]
        piece = np.repeat(np.arange(len(row)), num)
        first = rows.first_span[batch] + rows.span_offsets[row]
        place = np.arange(len(piece)) + (first - (np.cumsum(num) - num))[piece]
        return clip_spans(rows.loss_starts[place], rows.loss_stops[place], piece, start, length)

    def _find(self, sample: NDArray[np.integer]) -> tuple[Int64Array, Int64Array]:
        """The record batch and the place in `_rows` of each of these samples."""
        batch = np.searchsorted(self._first_sample, sample, side="right") - 1
        return batch, sample + batch

    @property
    def _rows(self) -> _Rows:
        """Made when first needed: it takes 8 bytes of memory a sample and 8 a span."""
        with self._lock:
            if self._made_rows is None:
                batches = self._batches
                self._made_rows = _Rows(
                    _join([batch.offsets for batch in batches], np.int32),
                    _join([batch.span_offsets for batch in batches], np.int32),
                    np.cumsum([0, *(len(batch.loss_starts) for batch in batches)])[:-1],
                    _join([batch.loss_starts for batch in batches], np.int32),
                    _join([batch.loss_stops for batch in batches], np.int32),
                )
            return self._made_rows


class _Rows(NamedTuple):
    """Where the tokens and loss spans of n samples in b record batches are, joined to be found without a loop."""

    offsets: NDArray[np.int32]
    """int32[n+b], of tokens in the record batch; each batch has one more than samples"""
    span_offsets: NDArray[np.int32]
    """int32[n+b], likewise"""
    first_span: Int64Array
    """int64[b], of each batch, among all"""
    loss_starts: NDArray[np.int32]
    """int32[s], in the sample"""
    loss_stops: NDArray[np.int32]
    """int32[s]"""


def _join(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype=dtype)
