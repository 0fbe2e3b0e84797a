"""Files of text: one document, JSON lines, or an array of JSON records.

Text           the whole file is one document (a book), however long; no line of it is a record of its own. Memory: the
               file. Text with one record a line belongs in JSON lines.
JSON arrays    a kernel finds where elements end by strings and brackets, and orjson reads each: the same rules as for
               JSON lines hold, and a broken element loses itself alone unless its quotes or brackets are broken.
               Price: 120 MB/s a core.
JSON lines     one object a line. Price: orjson a line at a time, about 165 MB/s a core.

Files are plain or compressed. Memory, for JSON: a block and its records, or the longest record when that is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from json import detect_encoding

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers import stream
from packer_cli.corpus.readers.base import BATCH_BYTES, FileReader, RawBatch, ReadRules
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject

ARRAY = "an array"
_ARRAY = re.compile(rb"\[\s*\{")
_PRETTY = re.compile(rb'\{[^\n]*\n(\s*["\]}]|[ \t]+[\[{])')
"""The beginning of an object, and a line that begins none."""


def _cut_whole(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Return one slice, as the file is one document."""
    return [CorpusSlice(file=file, start=0, stop=file.num_bytes)]


def _read_whole(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read one record `{"text": ...}` at line 1; a text that is too long or cut short is rejected whole."""
    parts: list[bytes] = []
    size = 0
    with Blocks(slice_.file, max_record_bytes=rules.max_record_bytes, xxh3=slice_.xxh3) as blocks:
        while size <= rules.max_record_bytes and (part := blocks.read(rules.batch_bytes)):
            parts.append(part)
            size += len(part)
        broken = blocks.broken
    batch = RawBatch()
    if size > rules.max_record_bytes:
        batch.rejects.append(Reject(1, rules.too_long()))
    elif broken:
        batch.rejects.append(Reject(1, f"{broken}; the text is incomplete"))
    else:
        data = b"".join(parts)
        try:
            batch.records.append((1, {"text": data.decode("utf-8").removeprefix("\ufeff")}))
        except UnicodeDecodeError as error:
            reason = f"invalid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} of the file"
            batch.rejects.append(Reject(1, reason))
    yield batch


TEXT = FileReader(_cut_whole, _read_whole)


def _find_borders(state: NDArray[np.int64], chunk: bytes) -> NDArray[np.int64]:
    """Find the borders of elements, while the bytes of a file go by from its start, or from that of an element.

    Args:
        state: int64[3], see `find_borders`.
    """
    from packer_cli.corpus.readers.json_borders import find_borders  # Takes longer than reading a small file.

    found = np.empty(len(chunk), dtype=np.int64)
    return found[: find_borders(np.frombuffer(chunk, dtype=np.uint8), state, found)].copy()


def _cut_array(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a comma between elements, each at least `slice_bytes` long but the last."""
    state = np.zeros(3, dtype=np.int64)

    def find_ends(chunk: bytes) -> NDArray[np.int64]:
        found = _find_borders(state, chunk)
        return found[:-1] if state[0] < 0 else found  # Nothing begins behind the closing bracket.

    return stream.cut_text(file, slice_bytes, find_ends, begun=0)


class _Elements(stream.RecordStream):
    """The elements of an array, by their numbers from 1; number 0 is what is before its bracket."""

    def __init__(self, blocks: Blocks, slice_: CorpusSlice, rules: ReadRules) -> None:
        super().__init__(blocks, slice_, rules)
        if self._position == 0:
            self._number = 0
        self._state = np.array([self._position > 0, 0, 0], dtype=np.int64)  # See `find_borders`.

    def _find(self, block: bytes) -> NDArray[np.int64]:
        return _find_borders(self._state, block)

    def _between(self, texts: list[stream.Text], border: bytes) -> list[stream.Found]:
        found: list[stream.Found] = [*texts[texts[0][1] == 0 :]]
        if self._state[0] >= 0:
            return found
        place, number, last = texts[-1]
        if not last.strip():
            found.pop()
            if number > 1:
                found.append((place, number, Reject(number, "broken JSON: a comma before the closing ]")))
            else:
                self._number = 1
        return found if border == b"]" else [*found, self._lose(place, f"the array is closed by {border.decode()}")]

    def _last(self, text: bytes) -> list[stream.Found]:
        text, place, number = text.strip(), self._position, self._number
        if self._blocks.broken:
            lost = f"the rest of the array from element {max(number, 1)} cannot be read"
            return [(place, number, Gap(max(number, 1), f"{self._blocks.broken}; {lost}"))]
        if self._state[0] < 0:
            return [self._lose(place, "there is more text after the array")] if text else []
        if text and stream.json_error(text) is None:
            self._number += 1
            return [(place, number, text), self._lose(place, "the file ends before the array does")]
        return [self._lose(place, f"the file ends {'inside this element' if text else 'before the array does'}")]

    def _lose(self, place: int, why: str) -> stream.Found:
        """Reject the rest: nothing is read behind a break."""
        self._is_lost = True
        return place, self._number, Gap(max(self._number, 1), f"broken JSON: {why}")

    def _why_not(self, text: bytes) -> str:
        """Count offsets from the element's first byte."""
        text = text.strip(stream.JSON_SPACE)
        return stream.why_not_json(text, "element") if text else "broken JSON: there is nothing between two commas"


_read_array = partial(stream.read_stream, _Elements)
ARRAYS = FileReader(_cut_array, _read_array)


def _cut_lines(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a newline, each at least `slice_bytes` long but the last."""
    form = "" if stream.is_one_slice(file, slice_bytes) else _form(file)
    if form == ARRAY:
        return _cut_array(file._replace(format="json"), slice_bytes)
    return stream.cut_text(file, stream.END if form else slice_bytes, stream.line_feeds, begun=1)


def _form(file: CorpusFile) -> str:
    """Return `ARRAY`, or why nothing of a file is read; "" for JSON lines. Price: reading its beginning."""
    with Blocks(file) as blocks:
        head = blocks.read(BATCH_BYTES)
    encoding = detect_encoding(head[:4])
    if encoding[:5] != "utf-8" and head[:64].decode(encoding, "ignore").lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return f"the file is {encoding[:6].upper()}; convert it to UTF-8, as with iconv -f {encoding[:6].upper()}"
    for magic, end in stream.MAGIC.items():
        if head.startswith(magic):
            what = "unpack it" if end == ".zip" or file.compression != "none" else f"end its name in {end}"
            return f"the file begins as a {end[end.rindex('.') :]} file does, not as JSON; {what}"
    head = head.removeprefix(stream.BOM).lstrip()
    first, _, rest = head.partition(b"\n")
    if _ARRAY.match(head) and (not rest.strip() or stream.json_error(first) is not None):
        return ARRAY
    if _PRETTY.match(head) and stream.json_error(first) is not None:
        return "the file has JSON over several lines; write one record a line, or an array of records"
    return ""


def _read_lines(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the records of a slice; blank lines are skipped, broken and overlong ones rejected."""
    form = "" if slice_.start else _form(slice_.file)
    if form == ARRAY:
        yield from _read_array(slice_, rules, fields)
    elif form:
        yield RawBatch(
            rejects=[Gap(1, f"{form}; none of its {slice_.file.num_bytes:,} bytes are read")],
            lost=slice_.file.num_bytes,
        )
    else:
        yield from stream.read_stream(stream.RecordStream, slice_, rules, fields)


LINES = FileReader(_cut_lines, _read_lines)
