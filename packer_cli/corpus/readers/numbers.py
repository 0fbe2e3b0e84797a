"""Files of numbers of one type: token ids, masks and indexes, as trainers write them.

They are read, not memory-mapped: a file that is cut short meanwhile then ends in an error, not in a dead process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import changed, open_file, readable, with_spans
from packer_cli.corpus.readers.base import RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject, TokenRows
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
            self._file = open_file(path)
            self.num_bytes = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> NumberFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self.num_bytes // self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read numbers `start` to `stop - 1`. Raises RunError when the file is shorter now, InputError on a fault."""
        out = np.empty(stop - start, dtype=self.dtype)
        view = out.view(np.uint8).data
        done = 0
        with readable(self.path, OSError):
            self._file.seek(start * self.dtype.itemsize)
            while done < len(view):
                size = self._file.readinto(view[done:])
                if not size:
                    raise changed(self.path)
                done += size
        return out.astype(self.dtype.newbyteorder("="), copy=False)


def cut_documents(
    file: CorpusFile, ends: NDArray[np.int64], slice_bytes: int | None, paths: Sequence[str]
) -> list[CorpusSlice]:
    """Cut ranges of documents of about `slice_bytes`.

    Args:
        ends: int64[n], rising: the byte where each document ends.
        paths: the file, and what belongs to it.
    """
    limit = slice_bytes or default_slice_bytes(file.num_bytes)
    cuts = np.searchsorted(ends, np.arange(limit, file.num_bytes, limit)) + 1
    borders = np.unique(np.concatenate([[0], np.minimum(cuts, len(ends)), [len(ends)]])).tolist()
    slices = [
        CorpusSlice(file=file, start=start, stop=stop, first_line=start + 1) for start, stop in pairwise(borders)
    ]
    places = np.minimum(np.append(0, ends)[borders], file.num_bytes).tolist()
    return with_spans(slices, [*pairwise(places)], paths)


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
