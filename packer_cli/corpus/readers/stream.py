"""Records that follow each other in a file of text: JSON lines, and the elements of a JSON array.

A slice holds the records that begin within its bytes. In a plain file reading starts there. A compressed file has no
way in but its front: its slices count decompressed bytes, and whoever reads one skips what is before it, 1 to 2 GB/s
for zstd and 300 MB/s for gzip. A process keeps the file open behind the slice it has read, for the next one: it
decompresses a file once, however many of its slices it reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks, checksums
from packer_cli.corpus.readers.base import RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.records.base import BadRecordError, read_json, type_name
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject

if TYPE_CHECKING:
    import orjson

BOM = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r\n"
MAGIC = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"\x1f\x8b": ".jsonl.gz",
    b"\x28\xb5\x2f\xfd": ".jsonl.zst",
    b"BZh": ".jsonl.bz2",
    b"\xfd7zXZ\0": ".jsonl.xz",
    b"PK\3\4": ".zip",
}
"""The first bytes of files that are no text -> the end of a name under which they are read."""


def why_not_json(text: bytes, what: str) -> str:
    """Return the reason to reject `text`, which orjson refuses; `what` is "line" or "element"."""
    error = json_error(text)
    assert error is not None
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"invalid UTF-8: byte 0x{text[bad.start]:02x} at offset {bad.start} of the {what}"
    at = error.pos
    for word in ("-Infinity", "Infinity", "NaN"):
        # orjson points behind a sign
        if decoded.startswith(word, at) or (word[0] == "-" and decoded.startswith(word, max(at - 1, 0))):
            return f"broken JSON: {word} at column {at + 1} is not a JSON value"
    if "surrogate" in error.msg:
        return f"broken JSON: half of a surrogate pair at column {at + 1}"
    return f"broken JSON: {error.msg} at column {at + 1}"


def json_error(text: bytes) -> orjson.JSONDecodeError | None:
    """Return what orjson says of a text that is not JSON."""
    import orjson

    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error
    return None


def line_feeds(data: bytes) -> NDArray[np.int64]:
    """Find the line feeds, int64[n]. Price: 0.2 ms a MiB."""
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))


FindEnds = Callable[[bytes], NDArray[np.int64]]
"""A chunk -> where in it records end, rising."""

END = 2**63 - 1
"""End of the last slice of a compressed file: nobody knows its length before having read it."""
HEAD_BYTES = 8 << 20
"""Decompressed bytes from which the length of a compressed file is estimated."""


Text = tuple[int, int, bytes]
"""A record that is not yet parsed: the place where it begins, in decompressed bytes, its number, and its bytes."""
Found = tuple[int, int, bytes | Reject]
"""Such a record, or what is rejected unread."""


class RecordStream:
    """The lines of a file from some line on, or other records with borders of one byte; each is taken once."""

    def __init__(self, blocks: Blocks, slice_: CorpusSlice, rules: ReadRules) -> None:
        self._blocks, self._rules = blocks, rules
        is_plain = slice_.file.compression == "none"
        self.taken = 0
        """All records that begin before this have been taken."""
        self._position = slice_.start if is_plain else 0
        """Place of the next record, in decompressed bytes."""
        self._number = slice_.first_line if is_plain else 1
        """Number of the next record: its line, or its place in the array."""
        self._open = bytearray()
        """Begin of the next record in earlier blocks."""
        self._is_lost = False
        """Whether nothing more is read."""
        self._found: list[Found] = []
        """Records of the last block that nobody has taken."""
        self._rest = self._records()

    def take(self, stop: int) -> list[Found]:
        """Take the records of about a block that begin before `stop`; none when there are no more."""
        if not self._found:
            self._found = next(self._rest, [])
        num = bisect_left(self._found, stop, key=itemgetter(0))
        taken, self._found = self._found[:num], self._found[num:]
        return taken

    def _records(self) -> Iterator[list[Found]]:
        """Yield the records that end in each block, and at last what is behind the last border."""
        place = self._position
        while not self._is_lost and (block := self._blocks.read(self._rules.batch_bytes)):
            ends = self._find(block).tolist()
            begins = [0, *(end + 1 for end in ends)]
            if ends:
                texts = [block[begin:end] for begin, end in zip(begins, ends, strict=False)]
                texts[0] = self._join(texts[0])
                places = [self._position, *(place + begin for begin in begins[1:])]
                numbered = list(zip(places, count(self._number), texts, strict=False))
                self._position = places[-1]
                self._number += len(texts)
                if found := self._between(numbered, block[ends[-1] : begins[-1]]):
                    yield found
            if len(self._open) <= self._rules.max_record_bytes:  # One that is too long need not be longer.
                self._open += block[begins[-1] :]
            place += len(block)
        if not self._is_lost and (found := self._last(self._join(b""))):
            yield found

    def _join(self, text: bytes) -> bytes:
        """Join the next record, of which this is the end."""
        text = bytes(self._open) + text if self._open else text
        self._open.clear()
        return text.removeprefix(BOM) if self._position == 0 else text

    def parse(self, taken: list[Found]) -> RawBatch:
        """Parse the records that were taken."""
        from orjson import JSONDecodeError

        batch = RawBatch()
        keep, refuse, most = batch.records.append, batch.rejects.append, self._rules.max_record_bytes
        for _, number, text in taken:
            if isinstance(text, Reject):
                refuse(text)
                batch.lost += self._blocks.left if isinstance(text, Gap) else 0
                continue
            if len(text) > most:
                refuse(Reject(number, self._rules.too_long()))
                continue
            try:
                record = read_json(text)
            except JSONDecodeError:
                if (why := self._why_not(text)) is not None:
                    refuse(Reject(number, why))
            except BadRecordError as error:
                refuse(Reject(number, str(error)))
            else:
                if type(record) is dict:
                    keep((number, record))
                else:
                    refuse(Reject(number, f"a record must be a JSON object, this is {type_name(record)}"))
        return batch

    def _find(self, block: bytes) -> NDArray[np.int64]:
        """Find the borders in the next block, rising."""
        return line_feeds(block)

    def _between(self, texts: list[Text], border: bytes) -> list[Found]:
        """Return what the texts of a block are, the last of which ends at this border."""
        return [*texts]

    def _last(self, text: bytes) -> list[Found]:
        """Return what is behind the last border of the file; it goes with the rest where the data breaks off."""
        found: bytes | Reject = text
        if self._blocks.broken:
            found = Gap(self._number, f"{self._blocks.broken}; the rest of the file is lost")
        elif text.strip() and len(text) <= self._rules.max_record_bytes and json_error(text) is not None:
            lost = "the file ends in this line, so the rest of it may be lost"
            found = Gap(self._number, f"{why_not_json(text, 'line')}; {lost}")
        return [(self._position, self._number, found)] if found else []

    def _why_not(self, text: bytes) -> str | None:
        """Say why a text is rejected that is not JSON; None: it is no record."""
        return why_not_json(text, "line") if text.strip() else None

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()


_kept: dict[tuple[Any, ...], RecordStream] = {}
"""The stream of a compressed file that was read last, when there is more to read from it."""


def read_stream(
    make: Callable[[Blocks, CorpusSlice, ReadRules], RecordStream],
    slice_: CorpusSlice,
    rules: ReadRules,
    fields: frozenset[str],
) -> Iterator[RawBatch]:
    """Read the records of a slice."""
    file = slice_.file
    is_plain = file.compression == "none"
    key = () if is_plain else (file.path, file.fingerprint, file.format, file.compression, rules, make)
    stream = _kept.pop(key, None)
    while _kept:
        _kept.popitem()[1].close()
    if stream is not None and stream.taken > slice_.start:
        stream.close()
        stream = None
    if stream is None:
        start, end = (slice_.start, slice_.stop) if is_plain else (0, None)
        blocks = Blocks(file, start, end, max_record_bytes=rules.max_record_bytes, xxh3=slice_.xxh3)
        stream = make(blocks, slice_, rules)
    stop = END if is_plain and slice_.stop == file.num_bytes else slice_.stop  # The last one looks at the end.
    is_whole = False
    try:
        while stream.take(slice_.start):
            pass
        while taken := stream.take(stop):
            yield stream.parse(taken)
        is_whole = True
    finally:
        if is_whole and stop != END and not is_plain:
            stream.taken = stop
            _kept[key] = stream
        else:
            stream.close()


def cut_text(file: CorpusFile, slice_bytes: int | None, find_ends: FindEnds, begun: int) -> list[CorpusSlice]:
    """Cut a file into slices, each at least `slice_bytes` long but the last; see `_cut_plain`, `_cut_compressed`."""
    if file.compression != "none":
        return _cut_compressed(file, slice_bytes)
    if is_one_slice(file, slice_bytes):  # Counting its records would take longer than reading it.
        return [CorpusSlice(file=file, start=0, stop=file.num_bytes)]
    return _cut_plain(file, slice_bytes or default_slice_bytes(file.num_bytes), find_ends, begun)


def is_one_slice(file: CorpusFile, slice_bytes: int | None) -> bool:
    """Whether a plain file is too small to be cut."""
    is_plain = file.compression == "none"
    return is_plain and 0 < file.num_bytes <= (slice_bytes or default_slice_bytes(file.num_bytes))


def _cut_plain(file: CorpusFile, slice_bytes: int, find_ends: FindEnds, begun: int) -> list[CorpusSlice]:
    """Cut a plain file into slices that begin behind the end of a record, each with its checksum.

    The file is read once.

    Args:
        slice_bytes: least bytes of each but the last.
        find_ends: called with the chunks of the file in order; behind each end begins another record.
        begun: records that begin at the start of the file: of lines one, of an array's elements none.
    """
    spans, numbers = [(0, END)], [1]  # The bytes of each slice, and the number of its first record.
    position = 0

    def see(chunk: bytes) -> None:
        nonlocal begun, position
        ends = find_ends(chunk)
        # A slice holds at least slice_bytes, so the first byte that may end one is the target's last.
        while (at := int(ends.searchsorted(spans[-1][0] + slice_bytes - 1 - position))) < len(ends):
            stop = position + int(ends[at]) + 1
            spans[-1:] = [(spans[-1][0], stop), (stop, END)]
            numbers.append(begun + at + 1)
        begun += len(ends)
        position += len(chunk)

    content, digests = checksums([file], spans, see)
    done = file._replace(fingerprint=content)
    return [
        CorpusSlice(file=done, start=start, stop=min(stop, file.num_bytes), first_line=number, xxh3=xxh3)
        for (start, stop), number, xxh3 in zip(spans, numbers, digests, strict=True)
        if start < file.num_bytes
    ]


def _cut_compressed(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut equal slices of the decompressed length that the beginning of the file lets expect.

    The last one takes what is there beyond it; where the rest compresses worse than the beginning, slices at the end
    hold nothing.
    """
    size = 0
    with Blocks(file) as blocks:
        while size < HEAD_BYTES and (block := blocks.read(1 << 20)):
            size += len(block)
        expected = size * file.num_bytes // max(blocks.consumed, 1)
    slice_bytes = slice_bytes or default_slice_bytes(expected)
    starts = [number * slice_bytes for number in range(max(1, expected // slice_bytes))]
    return [CorpusSlice(file=file, start=start, stop=stop) for start, stop in pairwise([*starts, END])]
