"""Reads a token store, for planning and gathering.

A sample's id is its row number over all parts in order. The parts are memory-mapped: opening the store reads only
lengths, and gathering a pack copies only its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.arrays import to_numpy
from packer_cli.tokens.index import StoreIndex, open_part, read_index
from packer_cli.tokens.spans import copy_spans


class TokenStore:
    """A token store, opened for planning and gathering."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._batches = [_Batch(batch) for part in index.parts for batch in open_part(folder, part)]
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

    def sources_of(self, sample: NDArray[np.int64]) -> NDArray[np.int32]:
        """int32[m]: source of each of these samples."""
        return self._source[self._file_of(sample)]

    def sources(self) -> NDArray[np.int32]:
        """int32[n]: source of every sample."""
        return np.repeat(self._source, self._num_samples)

    def _file_of(self, sample: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(np.cumsum(self._num_samples), sample, side="right")

    def locate(self, sample: NDArray[np.int64]) -> Iterator[tuple[str, int]]:
        """Yield the input file and line of each sample. `sample` (int64[m]) must be increasing."""
        paths = iter([self._files[file].path for file in self._file_of(sample).tolist()])
        first = np.searchsorted(sample, self._first_sample)
        for number, batch in enumerate(self._batches):
            local = sample[first[number] : first[number + 1]] - self._first_sample[number]
            if len(local):
                for line, path in zip(batch.lines[local].tolist(), paths, strict=False):
                    yield path, line

    def loss_tokens_of(
        self, sample: NDArray[np.int64], start: NDArray[np.int64], length: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Loss tokens (int32[m]) of pieces of samples, the first token of each not counted. Reads their masks."""
        counts = np.zeros(len(sample), dtype=np.int32)
        for batch, members, local in self._by_batch(sample):
            begin = batch.offsets[local].astype(np.int64) + start[members]
            counts[members] = _count_spans(batch.loss_mask, begin, length[members])
        return counts

    def gather(
        self, sample: NDArray[np.int64], start: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """Pieces one after another: ids and loss mask (int32[t], int8[t]), 0 at each first token. O(tokens).

        Raises:
            FormatError: a piece reaches past the end of its sample, so the store is not the planned one.
        """
        number = np.searchsorted(self._first_sample, sample, side="right") - 1
        begin, size = np.empty(len(sample), dtype=np.int64), length.astype(np.int64)
        for batch, members, local in self._by_batch(sample):
            begin[members] = batch.offsets[local] + start[members]
            if (begin[members] + size[members] > batch.offsets[local + 1]).any():
                raise FormatError(
                    f"token store {str(self.folder)!r}: a sample is shorter than planned; tokenize again"
                )
        input_ids = copy_spans([batch.ids_buffer for batch in self._batches], number, 4 * begin, 4 * size)
        loss_mask = copy_spans([batch.mask_buffer for batch in self._batches], number, begin, size)
        loss_mask[np.cumsum(size) - size] = 0
        return input_ids.view(np.int32), loss_mask.view(np.int8)

    def _by_batch(self, sample: NDArray[np.int64]) -> Iterable[tuple[_Batch, NDArray[np.int64], NDArray[np.int64]]]:
        """For each record batch with any of these samples: (batch, indices into `sample`, increasing rows)."""
        order = np.argsort(sample, kind="stable")
        borders = np.searchsorted(sample[order], self._first_sample)
        for number in np.flatnonzero(np.diff(borders)):
            members = order[borders[number] : borders[number + 1]]
            yield self._batches[number], members, sample[members] - self._first_sample[number]


class _Batch:
    """Numpy views of one record batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        ids, mask = batch.column("input_ids"), batch.column("loss_mask")
        self.offsets: NDArray[np.int32] = to_numpy(ids.offsets)
        self.ids_buffer = pa.py_buffer(to_numpy(ids.values))
        self.loss_mask: NDArray[np.int8] = to_numpy(mask.values)
        self.mask_buffer = pa.py_buffer(self.loss_mask)
        self.num_loss_tokens: NDArray[np.int32] = to_numpy(batch.column("num_loss_tokens"))
        self.lines: NDArray[np.int64] = to_numpy(batch.column("line"))


def _join(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype=dtype)


def _count_spans(
    loss_mask: NDArray[np.int8], begin: NDArray[np.int64], length: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Loss tokens of each span, not counting its first token. O(tokens between the first and the last span)."""
    first, stop = int(begin.min()), int((begin + length).max())
    up_to = np.concatenate([[0], np.cumsum(loss_mask[first:stop] != 0, dtype=np.int32)])
    return up_to[begin + length - first] - up_to[begin + 1 - first]
