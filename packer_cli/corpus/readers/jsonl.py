"""JSON lines: one object a line, plain or compressed.

Price: orjson a line at a time, about 165 MB/s a core. Memory: one block and its records, or the longest line when that
is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import detect_encoding

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers import json_array
from packer_cli.corpus.readers.base import BATCH_BYTES, FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.stream import (
    BOM,
    END,
    MAGIC,
    RecordStream,
    Taken,
    cut_text,
    json_error,
    read_stream,
    why_not_json,
)
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap

CUT_SHORT = "; the file ends in this line, so the rest of it may be lost"
ARRAY = "an array"
_ARRAY = re.compile(rb"\[\s*\{")
_PRETTY = re.compile(rb'\{[^\n]*\n(\s*["\]}]|[ \t]+[\[{])')
"""The beginning of an object, and a line that begins none."""


def _line_feeds(data: bytes) -> NDArray[np.int64]:
    """Find the line feeds, int64[n]. Price: 0.2 ms a MiB."""
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a newline, each at least `slice_bytes` long but the last."""
    is_small = file.num_bytes <= (slice_bytes or default_slice_bytes(file.num_bytes))
    form = "" if is_small and file.compression == "none" else _form(file)
    if form == ARRAY:
        return json_array.cut(file._replace(format="json"), slice_bytes)
    return cut_text(file, END if form else slice_bytes, _line_feeds, begun=1)


def _form(file: CorpusFile) -> str:
    """Return `ARRAY`, or why nothing of a file is read; "" for JSON lines. Price: reading its beginning."""
    with Blocks(file) as blocks:
        head = blocks.read(BATCH_BYTES)
    encoding = detect_encoding(head[:4])
    if encoding[:5] != "utf-8" and head[:64].decode(encoding, "ignore").lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return f"the file is {encoding[:6].upper()}; convert it to UTF-8, as with iconv -f {encoding[:6].upper()}"
    for magic, suffix in MAGIC.items():
        if head.startswith(magic):
            what = "unpack it" if suffix == ".zip" else f"end its name in {suffix}"
            return f"the file begins as a {suffix} file does, not as JSON; {what}"
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
    """The lines of a file."""

    def _find(self, block: bytes) -> NDArray[np.int64]:
        return _line_feeds(block)

    def _end(self, text: bytes, taken: Taken) -> None:
        """Take the last line, which has no newline; it goes with the rest where the data breaks off."""
        if self._blocks.broken:
            taken.rejects.append(Gap(self.number, f"{self._blocks.broken}; the rest of the file is lost"))
        elif text.strip() and len(text) <= self._rules.max_record_bytes and json_error(text) is not None:
            taken.rejects.append(Gap(self.number, why_not_json(text, "line") + CUT_SHORT))
        elif text:
            taken.texts.append((self.number, text))

    def _why_not(self, text: bytes) -> str | None:
        return why_not_json(text, "line") if text.strip() else None


READER = FileReader(cut, read)
