"""Records that follow each other in a file of text: JSON lines, and the elements of a JSON array.

A slice holds the records that begin within its bytes. In a plain file reading starts there. A compressed file has no
way in but its front: its slices count decompressed bytes, and whoever reads one skips what is before it, 1 to 2 GB/s
for zstd and 300 MB/s for gzip. A process keeps the file open behind the slice it has read, for the next one: it
decompresses a file once, however many of its slices it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer_cli.corpus.blocks import Blocks, fingerprint
from packer_cli.corpus.readers.base import RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.records.base import BadRecordError, type_name
from packer_cli.corpus.records.json_text import read_json
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject

if TYPE_CHECKING:
    import orjson

BOM = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r\n"


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


def parse_objects(
    texts: Iterable[tuple[int, bytes]],
    batch: RawBatch,
    rules: ReadRules,
    refuse: Callable[[int, bytes], Reject | None],
) -> RawBatch:
    """Add the records of texts to a batch.

    Args:
        texts: (number, text); a line feed at the end does not count as its length.
        refuse: what becomes of a text that is not JSON; None: nothing.
    """
    from orjson import JSONDecodeError

    keep, rejects = batch.records.append, batch.rejects
    most = rules.max_record_bytes
    for number, text in texts:
        if len(text) > most and len(text.removesuffix(b"\n")) > most:
            rejects.append(Reject(number, rules.too_long()))
            continue
        try:
            record = read_json(text)
        except JSONDecodeError:
            if (reject := refuse(number, text)) is not None:
                rejects.append(reject)
            continue
        except BadRecordError as error:
            rejects.append(Reject(number, str(error)))
            continue
        if type(record) is dict:
            keep((number, record))
        else:
            rejects.append(Reject(number, f"a record must be a JSON object, this is {type_name(record)}"))
    return batch


FindEnds = Callable[[bytes], Iterable[NDArray[np.int64]]]
"""A chunk -> where in it records end, rising: behind each begins another."""

END = 2**63 - 1
"""End of the last slice of a compressed file: nobody knows its length before having read it."""
HEAD_BYTES = 8 << 20
"""Decompressed bytes from which the length of a compressed file is estimated."""


class RecordStream(ABC):
    """The records of a file from some record on; each is taken once."""

    def __init__(self, blocks: Blocks, slice_: CorpusSlice, rules: ReadRules) -> None:
        self._blocks = blocks
        self._rules = rules
        is_plain = slice_.file.compression == "none"
        self.position = slice_.start if is_plain else 0
        """Place of the next record, in decompressed bytes."""
        self.number = slice_.first_line if is_plain else 1
        """Number of the next record: its line, or its place in the array."""
        self.taken = 0
        """All records that begin before this have been taken."""
        self._ended = False
        """Whether there is nothing more to read."""
        self._left: Any = ()
        """Text that has been read and not been taken."""
        self._open: list[bytes] = []  # Of a record whose end has not been read; joined once, however long it is.
        self._open_bytes = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to take, for any slice."""
        return self._ended and not self._left

    @abstractmethod
    def take(self, stop: int) -> Any:
        """Take some more text of records that begin before `stop`, not yet parsed; None when there are no more."""

    @abstractmethod
    def parse(self, taken: Any) -> Iterator[RawBatch]:
        """Parse the records of what `take` gave, some at a time."""

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()

    @property
    def _is_too_long(self) -> bool:
        """Whether what is known of the open record is more than a record may have."""
        return self._open_bytes > self._rules.max_record_bytes

    def _hold(self, data: bytes) -> None:
        """Add to the open record; one that is too long is only measured."""
        self._open_bytes += len(data)
        if self._is_too_long:
            self._open.clear()
        elif data:
            self._open.append(data)

    def _join(self, data: bytes = b"") -> bytes:
        """Join the open record with this at its end; the next one begins behind it."""
        text = b"".join((*self._open, data)) if self._open else data
        self._open.clear()
        self._open_bytes = 0
        return text


_kept: dict[tuple[Any, ...], RecordStream] = {}
"""The stream of a compressed file that was read last, when there is more to read from it."""


def read_stream(
    slice_: CorpusSlice, rules: ReadRules, make: Callable[[Blocks, CorpusSlice, ReadRules], RecordStream]
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
        start, end, xxh3 = (slice_.start, slice_.stop, slice_.xxh3) if is_plain else (0, None, file.fingerprint)
        if file.content is not None:
            xxh3 = ""
        blocks = Blocks(file, start, end, max_record_bytes=rules.max_record_bytes, xxh3=xxh3)
        stream = make(blocks, slice_, rules)
    stop = END if is_plain and slice_.stop == file.num_bytes else slice_.stop  # The last one looks at the end.
    is_whole = False
    try:
        while stream.position < slice_.start and stream.take(slice_.start) is not None:
            pass
        while (taken := stream.take(stop)) is not None:
            yield from stream.parse(taken)
        is_whole = True
    finally:
        if is_whole and not is_plain and not stream.is_done:
            stream.taken = stop
            _kept[key] = stream
        else:
            stream.close()


def cut_plain(file: CorpusFile, slice_bytes: int, find_ends: FindEnds, begun: int) -> list[CorpusSlice]:
    """Cut a plain file into slices that begin behind the end of a record, each with its checksum.

    The file is read once.

    Args:
        slice_bytes: least bytes of each but the last.
        find_ends: called with the chunks of the file in order.
        begun: records that begin at the start of the file: of lines one, of an array's elements none.
    """
    cuts = [(0, 1)]  # First byte of each slice, and the number of its first record.
    digests: list[str] = []  # Of the slices that have ended.
    digest = xxhash.xxh3_128()
    position = 0

    def see(chunk: bytes) -> None:
        nonlocal begun, position
        view, begin = memoryview(chunk), 0
        for ends in find_ends(chunk):
            # A slice holds at least slice_bytes, so the first byte that may end one is the target's last.
            while (at := int(ends.searchsorted(cuts[-1][0] + slice_bytes - 1 - position))) < len(ends):
                stop = int(ends[at]) + 1
                digest.update(view[begin:stop])
                digests.append(digest.hexdigest())
                digest.reset()
                begin = stop
                cuts.append((position + stop, begun + at + 1))
            begun += len(ends)
        digest.update(view[begin:])
        position += len(chunk)

    done = file._replace(fingerprint=fingerprint(file.path, on_chunk=see))
    digests.append(digest.hexdigest())
    borders = [*(cut for cut in cuts if cut[0] < file.num_bytes), (file.num_bytes, 0)]
    return [
        CorpusSlice(file=done, start=start, stop=stop, first_line=number, xxh3=xxh3)
        for ((start, number), (stop, _)), xxh3 in zip(pairwise(borders), digests, strict=False)
    ]


def whole_slice(file: CorpusFile) -> CorpusSlice:
    """Return all of a plain file, fingerprinted."""
    done = file._replace(fingerprint=fingerprint(file.path))
    return CorpusSlice(file=done, start=0, stop=file.num_bytes, xxh3=done.fingerprint)


def cut_compressed(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut equal slices of the decompressed length that the beginning of the file lets expect.

    The last one takes what is there beyond it; where the rest compresses worse than the beginning, slices at the end
    hold nothing.
    """
    done = file._replace(fingerprint=fingerprint(file.path))
    size = 0
    with Blocks(file) as blocks:
        while size < HEAD_BYTES and (block := blocks.read(1 << 20)):
            size += len(block)
        expected = size * file.num_bytes // max(blocks.consumed, 1)
    slice_bytes = slice_bytes or default_slice_bytes(expected)
    starts = [number * slice_bytes for number in range(max(1, expected // slice_bytes))]
    stops = [*starts[1:], END]
    return [CorpusSlice(file=done, start=start, stop=stop) for start, stop in zip(starts, stops, strict=True)]
