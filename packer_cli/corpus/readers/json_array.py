"""A `.json` file that holds one array of records, streamed.

A kernel finds where elements end by strings and brackets alone, and orjson reads each: the same rules as for JSON
lines hold, and a broken element loses itself alone unless its quotes or brackets are broken. Price: 120 MB/s a core.
Memory: a block, or the longest element when that is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.stream import (
    BOM,
    JSON_SPACE,
    RecordStream,
    cut_compressed,
    cut_plain,
    json_error,
    parse_objects,
    read_stream,
    whole_slice,
    why_not_json,
)
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject

BORDERS = 1 << 14
"""Borders that one call of the kernel looks for."""


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a comma between elements, each at least `slice_bytes` long but the last."""
    if file.compression != "none":
        return cut_compressed(file, slice_bytes)
    limit = slice_bytes or default_slice_bytes(file.num_bytes)
    if file.num_bytes <= limit:  # Without the kernel, whose import takes longer than reading a small file.
        return [whole_slice(file)]
    borders = _Borders(inside=False)

    def find_ends(chunk: bytes) -> Iterator[NDArray[np.int64]]:
        for found in borders.find(chunk):
            yield found[:-1] if borders.is_closed else found  # Nothing begins behind the closing bracket.

    return cut_plain(file, limit, find_ends, begun=0)


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the elements of a slice; the line of a record is its number in the array, from 1."""
    yield from read_stream(slice_, rules, _Elements)


class _Borders:
    """The borders of elements, while the bytes of a file go by from its start, or from that of an element."""

    def __init__(self, *, inside: bool) -> None:
        self._state = np.array([inside, 0, 0], dtype=np.int64)  # See `find_borders`.
        self._buffer = np.empty(BORDERS, dtype=np.int64)

    @property
    def is_closed(self) -> bool:
        """Whether the array has ended."""
        return int(self._state[0]) < 0

    def find(self, chunk: bytes) -> Iterator[NDArray[np.int64]]:
        """Yield indices into the chunk, in order, some at a time; each holds until the next."""
        from packer_cli.corpus.readers.json_borders import find_borders

        data = np.frombuffer(chunk, dtype=np.uint8)
        at = 0
        while at < len(data) and not self.is_closed:
            found, at = find_borders(data, at, self._state, self._buffer)
            yield self._buffer[:found]


class _Taken(NamedTuple):
    """Elements that are not yet parsed, and what is rejected unread."""

    texts: list[tuple[int, bytes]]
    """(number, text)"""
    rejects: list[Reject]


class _Elements(RecordStream):
    """The texts between borders. `position` is behind the border before the next; `number` is 0 before the array."""

    def __init__(self, blocks: Blocks, slice_: CorpusSlice, rules: ReadRules) -> None:
        super().__init__(blocks, slice_, rules)
        if self.position == 0:
            self.number = 0
        self._borders = _Borders(inside=self.position > 0)
        self._block = b""
        self._begin = 0  # Where in the block the text at `position` goes on.
        self._left: list[int] = []  # Borders in the block, the last one first.

    def take(self, stop: int) -> _Taken | None:
        """Take the elements of about a block."""
        taken = _Taken([], [])
        while self.position < stop and not self.is_done and not any(taken):
            if not self._left:
                self._read(taken)
            while self._left and self.position < stop:
                self._take_one(taken)
        return taken if any(taken) else None

    def _read(self, taken: _Taken) -> None:
        self._hold(self._block[self._begin :])
        self._block, self._begin = self._blocks.read(self._rules.batch_bytes), 0
        if self._block:
            self._left = [end for some in self._borders.find(self._block) for end in some.tolist()][::-1]
        else:
            self._end(taken)

    def _take_one(self, taken: _Taken) -> None:
        end = self._left.pop()
        size = self._open_bytes + end - self._begin
        text = self._join(self._block[self._begin : end])
        number, bracket = self.number, self._block[end : end + 1]
        is_last = not self._left and self._borders.is_closed
        self._begin = end + 1
        self.position += size + 1
        self.number += 1
        if number == 0:
            if bracket != b"[" or text.removeprefix(BOM).strip():
                self._lose(taken, "the array does not begin with [")
        elif size > self._rules.max_record_bytes:
            taken.rejects.append(Reject(number, self._rules.too_long()))
        elif is_last and not text.strip():
            if number > 1:
                taken.rejects.append(Reject(number, "broken JSON: a comma before the closing ]"))
            else:
                self.number = 1
        else:
            taken.texts.append((number, text))
        if is_last and bracket != b"]":
            self._lose(taken, f"the array is closed by {bracket.decode()}")

    def _end(self, taken: _Taken) -> None:
        """Take what is behind the last border when the file has ended."""
        self._ended = True
        text = b"".join(self._open).strip() if self._open else b""
        if self._blocks.broken:
            reason = f"{self._blocks.broken}; the rest of the array from element {max(self.number, 1)} cannot be read"
            taken.rejects.append(Gap(max(self.number, 1), reason))
        elif self._borders.is_closed:
            if text or self._is_too_long:
                self._lose(taken, "there is more text after the array")
        elif self.number == 0:
            self._lose(taken, "the array does not begin with [")
        elif text and json_error(text) is None:
            taken.texts.append((self.number, text))
            self.number += 1
            self._lose(taken, "the file ends before the array does")
        else:
            self._lose(taken, "the file ends inside this element" if text else "the file ends before the array does")

    def _lose(self, taken: _Taken, why: str) -> None:
        """Reject the rest: nothing is read behind a break."""
        self._ended = True
        self._left.clear()
        taken.rejects.append(Gap(max(self.number, 1), f"broken JSON: {why}"))

    def parse(self, taken: _Taken) -> Iterator[RawBatch]:
        """Parse elements; yield their records, and the rejects among them."""
        batch = RawBatch(rejects=taken.rejects)
        parse_objects(taken.texts, batch, self._rules, _refuse)
        batch.rejects.sort(key=lambda reject: reject.line)
        yield batch


def _refuse(number: int, text: bytes) -> Reject:
    """Say why an element is rejected, with offsets from its first byte."""
    text = text.strip(JSON_SPACE)
    why = why_not_json(text, "element") if text else "broken JSON: there is nothing between two commas"
    return Reject(number, why)


READER = FileReader(cut, read)
