"""Parts of a remote token store of which only the needed ranges are read.

The places of a part's columns are in its footer and in the metadata of its record batches. Price of opening: two
requests a part and one more for every thousand parts. Then a column costs a request and its bytes for each record
batch, and tokens a request for each run of samples. Many requests are under way at a time.

Only whole parts have checksums. What is read of a part is checked as far as its columns and `tokens.json` agree.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.arrays import Columns
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, Int64Array, find_wrong_row
from packer_cli.format.ragged import Lists
from packer_cli.format.schema import own_columns
from packer_cli.format.shards import find_blocks, first_buffers, footer_size, read_metadata
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.index import PartInfo, damaged_part

T = TypeVar("T")
_TAIL = 8 * 2**10
"""Bytes at the end of a part that are read first: its footer, if it has up to 250 record batches."""
_BUFFERS = {
    "offsets": ("input_ids", 1, np.int32),
    "input_ids": ("input_ids", 3, None),
    "span_offsets": (STARTS, 1, np.int32),
    STARTS: (STARTS, 3, np.int32),
    STOPS: (STOPS, 3, np.int32),
    WEIGHTS: (WEIGHTS, 3, np.float32),
    "num_loss_tokens": ("num_loss_tokens", 1, np.int32),
    "content_hash": ("content_hash", 1, np.uint64),
    "line": ("line", 1, np.int64),
}
"""Column of a buffer, its number there, and its type (None: the type of the ids), by name.

Not every part has weights."""


def _buffers(schema: pa.Schema) -> dict[str, int]:
    """Find the number of the buffer of each attribute, in the parts that have it."""
    first = first_buffers(schema)
    return {name: first[column] + at for name, (column, at, _) in _BUFFERS.items() if column in first}


@dataclass(frozen=True)
class RangedBatch:
    """A record batch of a remote part."""

    part: int
    """The part's number in the store."""
    num_rows: int
    places: dict[str, int]
    """The begin of each of `_BUFFERS` in the part."""


class RangedParts:
    """The parts of a remote store, of which ranges are read."""

    def __init__(self, folder: RemotePath, parts: Sequence[PartInfo], token: pa.DataType) -> None:
        """Find the record batches of all parts, in order.

        Raises:
            FormatError: a part is missing, has another size, or is damaged at its end.
        """
        self._folder = folder
        self._parts = parts
        self._token = np.dtype(str(token))
        self._schemas = {part.columns: part.columns.part(token) for part in parts}
        self._buffers = {columns: _buffers(schema) for columns, schema in self._schemas.items()}
        self.batches = self._find_batches()
        self._part = np.array([batch.part for batch in self.batches], dtype=np.int64)
        self._first_token = np.array([batch.places["input_ids"] for batch in self.batches], dtype=np.int64)

    def columns(self, name: str, numbers: Sequence[int]) -> list[NDArray[Any]]:
        """Read a buffer, such as `offsets`, of the record batches with these numbers.

        Raises:
            FormatError: it is damaged.
        """
        batches = [self.batches[number] for number in numbers]
        are_borders = name in ("offsets", "span_offsets")
        found = self._read(name, batches, [batch.num_rows + are_borders for batch in batches])
        if name == "num_loss_tokens":
            self._check_totals(batches, [int(values.sum(dtype=np.int64)) for values in found], name)
        for batch, values in zip(batches, found, strict=True) if are_borders else ():
            room = batch.places["span_offsets"] - batch.places["input_ids"]
            most = room // self._token.itemsize if name == "offsets" else 2**31
            if values[0] != 0 or (np.diff(values) < 0).any() or values[-1] > most:
                raise self._damaged(batch.part, f"its {name} are wrong")
        if name == "offsets":
            self._check_totals(batches, [int(values[-1]) for values in found], "num_tokens")
        return found

    def rows(self, numbers: Sequence[int]) -> list[Columns]:
        """Read where the tokens of record batches are, without their ids, and the loss spans of these.

        They are checked as those of a whole part.
        """
        batches, none = [self.batches[number] for number in numbers], np.zeros(0, dtype=self._token)
        found: list[Columns] = []
        offsets, span_offsets = (self.columns(name, numbers) for name in ("offsets", "span_offsets"))
        counts = [int(values[-1]) for values in span_offsets]
        spans = {name: self._read(name, batches, counts) for name in (STARTS, STOPS, WEIGHTS)}
        for i, batch in enumerate(batches):
            of = {name: values[i] for name, values in spans.items() if name in batch.places}
            if find_wrong_row(of[STARTS], of[STOPS], span_offsets[i], offsets[i], None, of.get(WEIGHTS)) is not None:
                raise self._damaged(batch.part, "its loss spans are wrong")
            lists = {name: Lists(span_offsets[i], values) for name, values in of.items()}
            found.append({"input_ids": Lists(offsets[i], none), **lists})
        return found

    def tokens(
        self, batch: Int64Array, begin: Int64Array, size: Int64Array
    ) -> tuple[list[pa.Buffer], Int64Array, Int64Array]:
        """Fetch spans of tokens: buffers, and for each span the number of its buffer and where it begins there.

        Memory: the spans, and up to 64 KiB between two that are close to each other.

        Args:
            batch: int64[m], index of each span's record batch.
            begin, size: int64[m], bytes in the tokens of the record batch.
        """
        begin = begin + self._first_token[batch]
        (part, start, stop), range_of = join_spans(self._part[batch], begin, begin + size, GAP_BYTES)
        names = [self._parts[number].path for number in part.tolist()]
        data = self._folder.read_ranges([*zip(names, start.tolist(), stop.tolist(), strict=True)])
        return [pa.py_buffer(each) for each in data], range_of, begin - start[range_of]

    def _find_batches(self) -> list[RangedBatch]:
        sizes = self._folder.find()
        for number, info in enumerate(self._parts):
            if (found := sizes.get(info.path)) != info.num_bytes:
                why = "it is missing" if found is None else f"it has {found} bytes instead of {info.num_bytes}"
                raise self._damaged(number, why)
        tails = self._read_tails([_TAIL] * len(self._parts))
        footers = [self._of(part, footer_size, tail) for part, tail in enumerate(tails)]
        if max(footers, default=0) > _TAIL:
            tails = self._read_tails(footers)
        blocks = [
            (part, *block)
            for part, tail in enumerate(tails)
            for block in self._of(part, self._find_blocks, part, tail)
        ]
        metadata = self._folder.read_ranges(
            [(self._parts[part].path, offset, offset + size) for part, offset, size, _ in blocks]
        )
        batches = [
            self._of(part, self._find_buffers, part, offset + size, memoryview(data))
            for (part, offset, size, _), data in zip(blocks, metadata, strict=True)
        ]
        self._check_totals(batches, [batch.num_rows for batch in batches], "num_samples")
        return batches

    def _read_tails(self, sizes: Sequence[int]) -> list[memoryview]:
        ends = [(part.path, part.num_bytes, size) for part, size in zip(self._parts, sizes, strict=True)]
        found = self._folder.read_ranges([(path, max(0, end - size), end) for path, end, size in ends])
        return [memoryview(data) for data in found]

    def _find_blocks(self, part: int, tail: memoryview) -> list[tuple[int, int, int]]:
        if own_columns(pa.ipc.open_file(pa.py_buffer(tail)).schema) != self._schemas[self._parts[part].columns]:
            raise ValueError("it has other columns")
        return find_blocks(tail)

    def _find_buffers(self, part: int, body: int, metadata: memoryview) -> RangedBatch:
        """Find the buffers of a record batch by its metadata and the place of its body."""
        buffers = self._buffers[self._parts[part].columns]
        num_rows, *starts = read_metadata(metadata, 0, [*buffers.values()])
        places = [body + start for start in starts]
        if num_rows < 0 or not 0 <= min(places) <= max(places) <= self._parts[part].num_bytes:
            raise ValueError("its record batches are wrong")
        return RangedBatch(part, num_rows, dict(zip(buffers, places, strict=True)))

    def _of(self, part: int, read: Callable[..., T], *arguments: Any) -> T:
        """Call what reads the bytes of a part, and turn errors of damage into one that names the part."""
        try:
            return read(*arguments)
        except (ValueError, IndexError, struct.error, pa.ArrowException) as error:
            raise self._damaged(part, str(error)) from None

    def _read(self, name: str, batches: Sequence[RangedBatch], counts: Sequence[int]) -> list[NDArray[Any]]:
        """Read so many values of a buffer of each record batch; none of one that lacks it."""
        dtype = np.dtype(_BUFFERS[name][2])
        wanted = [
            (self._parts[batch.part].path, begin, begin + num * dtype.itemsize)
            for batch, count in zip(batches, counts, strict=True)
            for begin, num in [(batch.places[name], count) if name in batch.places else (0, 0)]
        ]
        for batch, (_, _, stop) in zip(batches, wanted, strict=True):
            if stop > self._parts[batch.part].num_bytes:
                raise self._damaged(batch.part, "its record batches are wrong")
        return [np.frombuffer(data, dtype=dtype) for data in self._folder.read_ranges(wanted)]

    def _check_totals(self, batches: Sequence[RangedBatch], values: Sequence[int], name: str) -> None:
        """Raise FormatError where the values of a part's record batches do not add up to what `tokens.json` says."""
        totals: Counter[int] = Counter()
        for batch, value in zip(batches, values, strict=True):
            totals[batch.part] += value
        for number, found in totals.items():
            expected = getattr(self._parts[number], name)
            if found != expected:
                raise self._damaged(number, f"its {name} is {found} instead of {expected}")

    def _damaged(self, part: int, why: str) -> FormatError:
        return damaged_part(self._folder / self._parts[part].path, why)


REQUEST_BYTES = 256 * 2**10
"""The bytes that take as long as one more request: about 2 ms of the CPU, and of a network of 1 Gbit/s."""
GAP_BYTES = 64 * 2**10
"""Most bytes between two ranges that are read as one. Below `REQUEST_BYTES`, as these bytes take memory."""

_FILE_BITS = 44
"""Files are smaller than 16 TiB."""


def join_spans(file: Int64Array, start: Int64Array, stop: Int64Array, gap: int) -> tuple[Int64Array, Int64Array]:
    """Join m spans of files into the ranges to read, in order of file and start. O(m log m).

    Args:
        file, start, stop: int64[m]; spans may overlap.
        gap: spans of a file with at most this many bytes between them share a range.

    Returns:
        The files, starts and stops of k ranges, int64[3, k]; and the range that holds each span, int64[m].

    >>> joined = join_spans(np.array([1, 0, 1]), np.array([50, 7, 10]), np.array([60, 9, 45]), gap=5)
    >>> [each.tolist() for each in joined]
    [[[0, 1], [7, 10], [9, 60]], [1, 0, 1]]
    """
    order = np.lexsort((start, file))
    first, last = (file << _FILE_BITS | start)[order], (file << _FILE_BITS | stop)[order]
    reach = np.maximum.accumulate(last)
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = first[1:] > reach[:-1] + gap
    at = np.flatnonzero(begins)
    range_of = np.empty(len(order), dtype=np.int64)
    range_of[order] = np.cumsum(begins) - 1
    ends = np.concatenate([at[1:], [len(order)]])[: len(at)] - 1
    in_file = (1 << _FILE_BITS) - 1
    return np.stack([first[at] >> _FILE_BITS, first[at] & in_file, reach[ends] & in_file]), range_of
