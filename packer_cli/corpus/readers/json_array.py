"""A `.json` file that holds one array of records, streamed.

The standard decoder finds where an element ends in a sliding window, orjson then reads it: the same rules
as for JSON lines hold. Price: about 100 MB/s a core. Memory: the window, a block or the longest element.
A broken element hides where the next one begins, so the rest of its array is lost and said so.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import replace

from packer_cli.corpus.blocks import Blocks, Progress, fingerprint
from packer_cli.corpus.readers.base import FileReader, RawBatch
from packer_cli.corpus.readers.parse_json import why_not_json, why_not_object
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject

WINDOW_BYTES = 1 << 20
MARGIN = 16
"""An error so close to the window's end may only mean that the window ends inside a word or an escape."""
SPACE = " \t\n\r"


def cut(file: CorpusFile, slice_bytes: int | None, progress: Progress | None) -> list[CorpusSlice]:
    """One slice: where an element begins is known only to who has read all before it."""
    done = replace(file, fingerprint=fingerprint(file.path, progress=progress))
    return [CorpusSlice(file=done, start=0, stop=file.num_bytes)]


class _Window:
    """The text of a JSON array behind a cursor; invalid bytes are kept as lone surrogates."""

    def __init__(self, blocks: Blocks, window_bytes: int) -> None:
        self._blocks = blocks
        self._window_bytes = window_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._decoder = json.JSONDecoder()
        self.text = ""
        self.at = 0
        self.ended = False

    def more(self) -> None:
        """Drop what is behind the cursor and double the rest, so that a long element is not read n times."""
        rest = self.text[self.at :]
        block = self._blocks.read(max(self._window_bytes, len(rest)))
        self.ended = not block
        self.text = rest + self._decode(block, final=self.ended)
        self.at = 0

    def peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            text, at, size = self.text, self.at, len(self.text)
            while at < size and text[at] in SPACE:
                at += 1
            self.at = at
            if at < size or self.ended:
                return text[at : at + 1]
            self.more()

    def element(self) -> str:
        """The text of the next value; raises ValueError with a reason when it cannot be told."""
        while True:
            try:
                end = self._decoder.raw_decode(self.text, self.at)[1]
                if end < len(self.text) or self.ended:  # else a number may go on
                    found = self.text[self.at : end]
                    self.at = end
                    return found
            except json.JSONDecodeError as error:
                in_string = error.msg.startswith("Unterminated")
                if not in_string and (self.ended or error.pos < len(self.text) - MARGIN):
                    inside = error.pos >= len(self.text.rstrip(SPACE))
                    raise ValueError("the file ends inside it" if inside else error.msg) from error
                if self.ended:
                    raise ValueError("the file ends inside a string") from error
            except RecursionError as error:
                raise ValueError("it is nested too deeply") from error
            self.more()


def read(piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The elements of the array; the line of a record is its number in the array, from 1."""
    consumed = 0
    with Blocks(piece.file) as blocks:
        window = _Window(blocks, min(WINDOW_BYTES, batch_bytes))
        elements = _elements(window, blocks)
        while True:
            batch = RawBatch()
            finished = _fill(batch, elements, batch_bytes)
            # What lies behind a break is done with, too.
            batch.num_bytes = (piece.file.num_bytes if finished else blocks.consumed) - consumed
            consumed = blocks.consumed
            if batch.records or batch.rejects or batch.num_bytes:
                yield batch
            if finished:
                break


def _fill(batch: RawBatch, elements: Iterator[tuple[int, str] | Reject], batch_bytes: int) -> bool:
    """Read about `batch_bytes` of elements into the batch; True at the end of the array."""
    from orjson import JSONDecodeError, loads

    size = 0
    for item in elements:
        if isinstance(item, Reject):
            batch.rejects.append(item)
            continue
        number, text = item
        size += len(text)
        try:
            record = loads(text)
        except JSONDecodeError as error:
            reason = why_not_json(text.encode("utf-8", "surrogateescape"), error, "element")
            batch.rejects.append(Reject(number, reason))
        else:
            if type(record) is dict:
                batch.records.append((number, record))
            else:
                batch.rejects.append(Reject(number, why_not_object(record)))
        if size >= batch_bytes:
            return False
    return True


def _elements(window: _Window, blocks: Blocks) -> Iterator[tuple[int, str] | Reject]:
    """(number, text) of each element; a reject, and the end, where the array breaks."""
    number = 1

    def lost(why: str) -> Reject:
        why = blocks.broken or why
        return Reject(number, f"{why}; the rest of the array from element {number} cannot be read")

    if window.peek() == "\ufeff":
        window.at += 1
    if window.peek() != "[":
        yield lost("broken JSON: the array does not begin with [")
        return
    window.at += 1
    if window.peek() == "]":
        window.at += 1
    else:
        while True:
            try:
                yield number, window.element()
            except ValueError as error:
                yield lost(f"broken JSON: {error}")
                return
            number += 1
            mark = window.peek()
            if mark not in (",", "]"):
                yield lost(
                    f"broken JSON: expected , or ] but found {mark!r}"
                    if mark
                    else "broken JSON: the file ends before the array does"
                )
                return
            window.at += 1
            if mark == "]":
                break
            if not window.peek():
                yield lost("broken JSON: the file ends before the array does")
                return
            if window.peek() == "]":
                yield lost("broken JSON: a comma before the closing ]")
                return
    if window.peek():
        yield lost("broken JSON: there is more text after the array")


READER = FileReader(cut, read)
