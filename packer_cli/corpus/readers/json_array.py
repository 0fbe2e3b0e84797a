"""A `.json` file that holds one array of records, streamed.

A kernel finds where elements end by strings and brackets alone, and orjson reads each: the same rules as for JSON
lines hold, and a broken element loses itself alone unless its quotes or brackets are broken. Price: 120 MB/s a core.
Memory: a block, or the longest element when that is longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules
from packer_cli.corpus.readers.stream import (
    JSON_SPACE,
    RecordStream,
    Taken,
    cut_text,
    json_error,
    read_stream,
    why_not_json,
)
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject


class _Borders:
    """The borders of elements, while the bytes of a file go by from its start, or from that of an element."""

    def __init__(self, *, inside: bool) -> None:
        self._state = np.array([inside, 0, 0], dtype=np.int64)  # See `find_borders`.

    @property
    def is_closed(self) -> bool:
        """Whether the array has ended."""
        return int(self._state[0]) < 0

    def find(self, chunk: bytes) -> NDArray[np.int64]:
        """Find their indices into the chunk, in order."""
        from packer_cli.corpus.readers.json_borders import find_borders  # Takes longer than reading a small file.

        found = np.empty(len(chunk), dtype=np.int64)
        return found[: find_borders(np.frombuffer(chunk, dtype=np.uint8), self._state, found)].copy()

    def find_ends(self, chunk: bytes) -> NDArray[np.int64]:
        """Find borders behind which an element begins, as none does behind the closing bracket."""
        found = self.find(chunk)
        return found[:-1] if self.is_closed else found


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut slices that begin behind a comma between elements, each at least `slice_bytes` long but the last."""
    return cut_text(file, slice_bytes, _Borders(inside=False).find_ends, begun=0)


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the elements of a slice; the line of a record is its number in the array, from 1."""
    yield from read_stream(slice_, rules, _Elements)


class _Elements(RecordStream):
    """The elements of an array; number 0 is what is before its bracket."""

    def __init__(self, blocks: Blocks, slice_: CorpusSlice, rules: ReadRules) -> None:
        super().__init__(blocks, slice_, rules)
        if self.position == 0:
            self.number = 0
        self._borders = _Borders(inside=self.position > 0)

    @property
    def _is_closed(self) -> bool:
        return self._borders.is_closed and not len(self._ends)

    def _find(self, block: bytes) -> NDArray[np.int64]:
        return self._borders.find(block)

    def _add(self, texts: list[tuple[int, bytes]], taken: Taken) -> None:
        super()._add(texts[texts[0][0] == 0 :], taken)
        if not self._is_closed:
            return
        number, last = taken.texts[-1]
        if not last.strip():
            taken.texts.pop()
            if number > 1:
                taken.rejects.append(Reject(number, "broken JSON: a comma before the closing ]"))
            else:
                self.number = 1
        bracket = self._block[self._begin - 1 : self._begin]
        if bracket != b"]":
            self._lose(taken, f"the array is closed by {bracket.decode()}")

    def _end(self, text: bytes, taken: Taken) -> None:
        text = text.strip()
        if self._blocks.broken:
            lost = f"the rest of the array from element {max(self.number, 1)} cannot be read"
            taken.rejects.append(Gap(max(self.number, 1), f"{self._blocks.broken}; {lost}"))
        elif self._is_closed:
            if text:
                self._lose(taken, "there is more text after the array")
        elif text and json_error(text) is None:
            taken.texts.append((self.number, text))
            self.number += 1
            self._lose(taken, "the file ends before the array does")
        else:
            self._lose(taken, "the file ends inside this element" if text else "the file ends before the array does")

    def _lose(self, taken: Taken, why: str) -> None:
        """Reject the rest: nothing is read behind a break."""
        self._ended = True
        self._ends = self._ends[:0]
        taken.rejects.append(Gap(max(self.number, 1), f"broken JSON: {why}"))

    def _why_not(self, text: bytes) -> str:
        """Count offsets from the element's first byte."""
        text = text.strip(JSON_SPACE)
        return why_not_json(text, "element") if text else "broken JSON: there is nothing between two commas"


READER = FileReader(cut, read)
