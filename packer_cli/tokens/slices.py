"""The records of a part's slices, read one slice after another.

A record's key combines, in one integer, the number of its slice in the part and its line in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.types import CorpusSlice, DocumentBatch, Reject

if TYPE_CHECKING:
    from packer_cli.corpus.read import SliceReader

LINE_BITS = 44
_LINE = (1 << LINE_BITS) - 1


def read_slices(reader: SliceReader, slices: Sequence[CorpusSlice]) -> Iterator[DocumentBatch]:
    """Yield the records of the slices, in order; `line` is a record's key. The first slice's keys are its lines."""
    for number, slice_ in enumerate(slices):
        yield from reader.read(slice_, base=number << LINE_BITS)


def lines_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the line (int64[n]) of each record in its file."""
    return keys & _LINE


def describe_line(key: int, slices: Sequence[CorpusSlice]) -> str:
    """Write the file and line of a record, for people."""
    return f"{slices[key >> LINE_BITS].file.path}, line {key & _LINE}"


def count_by_slice(keys: NDArray[np.int64], num_slices: int) -> NDArray[np.int64]:
    """Count the records from each slice, int64[s]."""
    return np.bincount(keys >> LINE_BITS, minlength=num_slices)


def with_lines(rejects: Sequence[Reject]) -> list[Reject]:
    """Sort rejects by slice and line, and turn their keys back into lines."""
    ordered = sorted(rejects, key=lambda reject: reject.line)
    return [reject._replace(line=reject.line & _LINE) for reject in ordered]


def read_all(slice_: CorpusSlice) -> None:
    """Read a slice and discard it, to see whether reading it crashes."""
    from packer_cli.corpus.read import SliceReader

    for _ in SliceReader().read(slice_):
        pass
