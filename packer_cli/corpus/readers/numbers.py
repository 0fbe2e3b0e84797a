"""Files of numbers of one type: token ids, masks and indexes, as trainers write them.

They are read, not memory-mapped: a file that is cut short meanwhile then ends in an error, not in a dead process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import BufferedReader
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import changed, open_file, readable, with_spans
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject, TokenRows
from packer_cli.format.ragged import Lists

BATCH_TOKENS = 1 << 20
"""Tokens a batch, unless a document holds more: enough for the arrays' fixed costs, few enough for the cache."""


class NumberFile:
    """A file of numbers.

    Args:
        dtype: of a number, little-endian.

    Raises InputError when the file cannot be opened.
    """

    def __init__(self, path: str, dtype: Any) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        with readable(path, OSError):
            self._file = BufferedReader(open_file(path))
            self.num_bytes = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> NumberFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self.num_bytes // self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read numbers `start` to `stop - 1`. Raises RunError when the file is shorter now, InputError on a fault."""
        size = (stop - start) * self.dtype.itemsize
        with readable(self.path, OSError):
            self._file.seek(start * self.dtype.itemsize)
            data = self._file.read(size)
        if len(data) < size:
            raise changed(self.path)
        return np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="), copy=False)


class Documents(NamedTuple):
    """Documents of files of numbers, as an index beside them has them."""

    columns: dict[str, tuple[str, str]]
    """`input_ids` and perhaps `loss_mask`: the file, and the dtype of its numbers."""
    firsts: NDArray[np.int64]
    """int64[n]: the places of first numbers; below 0: nowhere."""
    lengths: NDArray[Any]
    """integers [n]"""


ReadIndex = Callable[[CorpusFile, int, int | None], Documents]
"""(file, start, stop) -> documents `start` to `stop - 1`, all by default. Raises InputError when it is damaged."""


def indexed_reader(read_index: ReadIndex, parts: Callable[[str], list[str]]) -> FileReader:
    """Make the reader of a format of token ids with an index; a slice is a range of documents."""
    return FileReader(partial(_cut, read_index, parts), partial(_read, read_index), parts)


def _cut(
    read_index: ReadIndex, parts: Callable[[str], list[str]], file: CorpusFile, slice_bytes: int | None
) -> list[CorpusSlice]:
    """Cut ranges of documents of about `slice_bytes`."""
    documents = read_index(file, 0, None)
    ends = np.cumsum(documents.lengths, dtype=np.int64) * np.dtype(documents.columns["input_ids"][1]).itemsize
    limit = slice_bytes or default_slice_bytes(file.num_bytes)
    cuts = np.searchsorted(ends, np.arange(limit, file.num_bytes, limit)) + 1
    borders = np.unique(np.concatenate([[0], np.minimum(cuts, len(ends)), [len(ends)]])).tolist()
    slices = [
        CorpusSlice(file=file, start=start, stop=stop, first_line=start + 1) for start, stop in pairwise(borders)
    ]
    places = np.minimum(np.append(0, ends)[borders], file.num_bytes).tolist()
    return with_spans(slices, [*pairwise(places)], parts(file.path))


def _read(read_index: ReadIndex, slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the documents of the slice; those that the index puts outside the file are lost."""
    columns, first, lengths = read_index(slice_.file, slice_.start, slice_.stop)
    with ExitStack() as stack:
        files = {name: stack.enter_context(NumberFile(*place)) for name, place in columns.items()}
        lines, last = np.arange(slice_.start, slice_.stop) + 1, first + lengths
        is_inside = (lengths >= 0) & (first >= 0) & (last <= min(map(len, files.values())))
        follows = np.zeros(len(first), np.bool_)
        follows[1:] = is_inside[1:] == is_inside[:-1]
        follows[1:] &= ~is_inside[1:] | (first[1:] == last[:-1])
        runs = np.append(np.flatnonzero(~follows), len(first))
        for start, stop in zip(runs.tolist(), runs[1:].tolist(), strict=False):
            if is_inside[start]:
                borders = np.append(first[start:stop], last[stop - 1])
                yield from read_documents(files, borders, lines[start:stop], rules)
            else:
                numbers = f"{lines[start]} to {lines[stop - 1]}"
                name = os.path.basename(slice_.file.path)
                lost = f"the index puts sequences {numbers} outside {name}; they are lost"
                yield RawBatch(rejects=[Gap(int(lines[start]), lost)])


def read_documents(
    files: dict[str, NumberFile], borders: NDArray[np.int64], lines: NDArray[np.int64], rules: ReadRules
) -> Iterator[RawBatch]:
    """Read documents that follow each other, about `BATCH_TOKENS` at a time.

    Args:
        files: by column, `input_ids` and perhaps `loss_mask`.
        borders: int64[n+1], rising: where documents begin in the files, and the end.
        lines: int64[n]: the documents' lines.
    """
    lengths = np.diff(borders)
    too_long = np.flatnonzero(lengths > rules.max_record_bytes // files["input_ids"].dtype.itemsize)
    place = 0
    while place < len(lengths):
        after = np.searchsorted(too_long, place)
        next_long = int(too_long[after]) if after < len(too_long) else len(lengths)
        if next_long == place:
            yield RawBatch(rejects=[Reject(int(lines[place]), rules.too_long())])
            place += 1
            continue
        most = int(np.searchsorted(borders, borders[place] + BATCH_TOKENS, side="right")) - 1
        stop = min(max(most, place + 1), next_long)
        start, end = int(borders[place]), int(borders[stop])
        offsets = borders[place : stop + 1] - start
        columns = {name: Lists(offsets, file.read(start, end)) for name, file in files.items()}
        yield RawBatch(tokens=TokenRows(lines[place:stop], columns))
        place = stop
