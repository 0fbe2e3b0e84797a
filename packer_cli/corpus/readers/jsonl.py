"""JSON lines: one object a line, plain or compressed.

Price: orjson a line at a time, about 165 MB/s a core. Memory: one block and its records, or the longest line when that
is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from json import detect_encoding
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers import json_array
from packer_cli.corpus.readers.base import BATCH_BYTES, FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.stream import (
    BOM,
    END,
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

CUT_SHORT = "; the file ends in this line, so the rest of it may be lost"
ARRAY = "an array"
_ARRAY = re.compile(rb"\[\s*\{")
_PRETTY = re.compile(rb'\{[^\n]*\n(\s*["\]}]|[ \t]+[\[{])')
"""The beginning of an object, and a line that begins none."""


class _Taken(NamedTuple):
    """Whole lines."""

    number: int
    """Number of the first line."""
    lines: list[bytes]
    """Each with its line feed, which the last line of a file may lack."""


def _line_feeds(data: bytes) -> NDArray[np.int64]:
    """Find the line feeds, int64[n]. Price: 0.2 ms a MiB."""
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a newline, each at least `slice_bytes` long but the last."""
    is_plain, limit = file.compression == "none", slice_bytes or default_slice_bytes(file.num_bytes)
    if is_plain and 0 < file.num_bytes <= limit:  # Counting its lines would take longer than reading it.
        return [whole_slice(file)]
    form = _form(file)
    if form == ARRAY:
        return json_array.cut(file._replace(format="json"), slice_bytes)
    if not is_plain:
        return cut_compressed(file, END if form else slice_bytes)
    return [whole_slice(file)] if form else cut_plain(file, limit, lambda chunk: (_line_feeds(chunk),), begun=1)


def _form(file: CorpusFile) -> str:
    """Return `ARRAY`, or why nothing of a file is read; "" for JSON lines. Price: reading its beginning."""
    with Blocks(file) as blocks:
        head = blocks.read(BATCH_BYTES)
    encoding = detect_encoding(head[:4])
    if encoding[:5] != "utf-8" and head[:64].decode(encoding, "ignore").lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return f"the file is {encoding[:6].upper()}; convert it to UTF-8, as with iconv -f {encoding[:6].upper()}"
    head = head.removeprefix(BOM).lstrip()
    first, _, rest = head.partition(b"\n")
    if _ARRAY.match(head) and (not rest.strip() or json_error(first) is not None):
        return ARRAY
    if _PRETTY.match(head) and json_error(first) is not None:
        return "the file has JSON over several lines; write one record a line, or an array of records"
    return ""


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the records of a slice; blank lines are skipped, broken and overlong ones rejected."""
    form = "" if slice_.start else _form(slice_.file)
    if form == ARRAY:
        yield from json_array.read(slice_, rules, fields)
    elif form:
        yield RawBatch(rejects=[Gap(1, f"{form}; none of its {slice_.file.num_bytes:,} bytes are read")])
    else:
        yield from read_stream(slice_, rules, _Lines)


class _Lines(RecordStream):
    """Whole lines, about a block of them at a time."""

    _left: bytes
    """Whole lines, which begin at `position`."""

    def take(self, stop: int) -> _Taken | Reject | None:
        """Take whole lines, or a line that is lost."""
        if self.position >= stop:
            return None
        if not self._left:
            lost = self._read()
            if lost is not None:
                return lost
            if not self._left:
                return None
        data, self._left = self._left, b""
        if self.position + len(data) > stop:
            end = data.find(b"\n", stop - self.position - 1) + 1 or len(data)
            data, self._left = data[:end], data[end:]
        taken = _Taken(self.number, BytesIO(data).readlines())
        self.position += len(data)
        self.number += len(taken.lines)
        return taken

    def _read(self) -> Reject | None:
        """Fill `_left`, which stays empty at the end; gives a line that is lost, instead."""
        while not self._ended:
            block = self._blocks.read(self._rules.batch_bytes)
            if not block:
                return self._end()
            end = block.rfind(b"\n") + 1
            if not end:
                self._hold(block)
                continue
            if self._is_too_long:
                begin = block.find(b"\n") + 1
                number, self.number = self.number, self.number + 1
                self.position += self._open_bytes + begin
                self._left = block[begin:end]
                self._join()
                self._hold(block[end:])
                return Reject(number, self._rules.too_long())
            self._left = self._join(block[:end])
            self._hold(block[end:])
            return None
        return None

    def _end(self) -> Reject | None:
        """Take the last line, which has no newline; it goes with the rest where the data breaks off."""
        self._ended = True
        if self._blocks.broken:
            return Gap(self.number, f"{self._blocks.broken}; the rest of the file is lost")
        if self._is_too_long:
            return Reject(self.number, self._rules.too_long())
        self._left = self._join()
        return None

    def parse(self, taken: _Taken | Reject) -> Iterator[RawBatch]:
        """Parse the records of whole lines."""
        if isinstance(taken, Reject):
            yield RawBatch(rejects=[taken])
            return
        if taken.number == 1:
            taken.lines[0] = taken.lines[0].removeprefix(BOM)
        yield parse_objects(enumerate(taken.lines, taken.number), RawBatch(), self._rules, _refuse)


def _refuse(number: int, line: bytes) -> Reject | None:
    text = line.removesuffix(b"\n")
    if not text.strip():
        return None
    reason = why_not_json(text, "line")
    return Reject(number, reason) if len(text) < len(line) else Gap(number, reason + CUT_SHORT)


READER = FileReader(cut, read)
