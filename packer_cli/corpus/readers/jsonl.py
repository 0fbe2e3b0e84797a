"""JSON lines: one object a line, plain or compressed.

Price: orjson a line at a time, about 250 MB/s a core with batches that fit the processor's cache.
Memory: one block and its records, or the longest line when that is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packer_cli.corpus.blocks import Blocks, Progress, fingerprint
from packer_cli.corpus.readers.base import FileReader, RawBatch, default_slice_bytes
from packer_cli.corpus.readers.parse_json import why_not_json, why_not_object
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject

BOM = b"\xef\xbb\xbf"


class _LineCutter:
    """Finds cut points behind newlines while the chunks of a file go by, and counts lines up to them."""

    def __init__(self, slice_bytes: int) -> None:
        self._slice_bytes = slice_bytes
        self._position = 0
        self._target = slice_bytes
        self._lines = 0
        self.cuts: list[tuple[int, int]] = [(0, 1)]
        """(first byte, its 1-based line) of each slice."""

    def see(self, chunk: bytes) -> None:
        counted = 0
        # A slice holds at least slice_bytes, so the first byte that may end one is the target's last.
        while (at := chunk.find(b"\n", max(self._target - 1 - self._position, counted))) >= 0:
            self._lines += chunk.count(b"\n", counted, at + 1)
            counted = at + 1
            self.cuts.append((self._position + counted, self._lines + 1))
            self._target = self._position + counted + self._slice_bytes
        self._lines += chunk.count(b"\n", counted)
        self._position += len(chunk)


def cut(file: CorpusFile, slice_bytes: int | None, progress: Progress | None) -> list[CorpusSlice]:
    """Slices that begin behind a newline, each at least `slice_bytes` long but the last."""
    if file.compression != "none":
        done = replace(file, fingerprint=fingerprint(file.path, progress=progress))
        return [CorpusSlice(file=done, start=0, stop=file.num_bytes)]
    cutter = _LineCutter(slice_bytes or default_slice_bytes(file.num_bytes))
    done = replace(file, fingerprint=fingerprint(file.path, progress=progress, on_chunk=cutter.see))
    starts = [cut for cut in cutter.cuts if cut[0] < file.num_bytes]
    stops = [start for start, _ in starts[1:]] + [file.num_bytes]
    return [
        CorpusSlice(file=done, start=start, stop=stop, first_line=line)
        for (start, line), stop in zip(starts, stops, strict=False)
    ]


def read(piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The records of a slice; blank lines are skipped, broken ones rejected."""
    line = piece.first_line
    carry: list[bytes] = []
    consumed = 0
    with Blocks(piece.file, piece.start, piece.stop) as blocks:
        while block := blocks.read(batch_bytes):
            end = block.rfind(b"\n") + 1
            if not end:
                carry.append(block)
                continue
            data = b"".join((*carry, block[:end]))
            carry = [block[end:]] if end < len(block) else []
            batch, line = _parse(data, line, blocks.consumed - consumed)
            consumed = blocks.consumed
            yield batch
        last = b"".join(carry)
        if blocks.broken:
            # The unfinished line goes with the rest that is lost.
            batch = RawBatch(rejects=[Reject(line, f"{blocks.broken}; the rest of the file is lost")])
        else:
            batch, _ = _parse(last, line, 0)
        batch.num_bytes = piece.stop - piece.start - consumed  # with what lies behind a break
    if batch.records or batch.rejects or batch.num_bytes:
        yield batch


def _parse(data: bytes, line: int, num_bytes: int) -> tuple[RawBatch, int]:
    """Parse whole lines, the first numbered `line`; returns the batch and the next line's number."""
    from orjson import JSONDecodeError, loads

    if line == 1 and data.startswith(BOM):
        data = data[3:]
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    batch = RawBatch(num_bytes=num_bytes)
    keep, rejects = batch.records.append, batch.rejects
    for number, text in enumerate(lines, line):
        try:
            record = loads(text)
        except JSONDecodeError as error:
            if text.strip():
                rejects.append(Reject(number, why_not_json(text, error, "line")))
            continue
        if type(record) is dict:
            keep((number, record))
        else:
            rejects.append(Reject(number, why_not_object(record)))
    return batch, line + len(lines)


READER = FileReader(cut, read)
