"""A sample of files: records from places all over them, as data are often sorted or joined.

A place in lines, texts or a JSON array has the records that begin in a window of bytes. A compressed file has no way
in but its front. Of a table it is a row group or the like; of a large one, only some batches of its rows.

Price: reading about `SAMPLE_BYTES` of the files of each kind, or one row group where that is more.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple, TypeVar

from packer_cli.corpus.blocks import Blocks, DamagedFileError
from packer_cli.corpus.discover import cut_file
from packer_cli.corpus.readers.tables import row_groups
from packer_cli.corpus.types import CorpusFile, CorpusSlice
from packer_cli.corpus.unchanged import AT_ONCE

T = TypeVar("T")

SAMPLE_BYTES = 8 << 20
PLACE_BYTES = SAMPLE_BYTES // 16
_MOST_FILES = 256
_BEHIND = 64 << 10
"""Bytes read behind a place, in which its last record may end; as many times more as it takes, up to `_LONGEST`."""
_LONGEST = 128 << 20
_LINE = re.compile(rb"\n")
_FIRST_KEY = re.compile(rb'\s*\[\s*\{\s*("(?:[^"\\]|\\.)*"\s*:)')


class Place(NamedTuple):
    """A place in a file."""

    slice_: CorpusSlice
    num_bytes: float
    """Size of its records in the file."""
    window: float
    """Size of that in which they begin, by which records are counted: one long one more or less changes it little."""


class Stratum(NamedTuple):
    """Files of one input, format and order of size, and the sample of them."""

    files: list[CorpusFile]
    places: list[Place]
    num_records: float | None = None
    """Records of the files, where that is known without reading them."""

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(file.num_bytes for file in self.files)

    def count_records(self, num_read: int) -> float:
        """Estimate the records of the files, of which so many were read."""
        return self.num_records or num_read * self.num_bytes / sum(place.window for place in self.places)


def sample_files(files: Iterable[CorpusFile]) -> list[Stratum]:
    """Sample the files of inputs. Raises InputError for a file that cannot be read."""
    kinds = defaultdict(list)
    for file in files:
        if file.num_bytes:
            kinds[file.source_id, file.format, file.compression, file.num_bytes <= PLACE_BYTES].append(file)
    found = [
        (_sample_text if kind in ("jsonl", "json", "text") and compression == "none" else _sample_units)(own)
        for (_, kind, compression, _), own in kinds.items()
    ]
    return [each for each in found if any(place.num_bytes for place in each.places)]


def _sample_text(files: list[CorpusFile]) -> Stratum:
    ends = [*accumulate(file.num_bytes for file in files)]
    if ends[-1] <= SAMPLE_BYTES and len(files) <= _MOST_FILES:
        wanted = [(file, start) for file in files for start in range(0, file.num_bytes, PLACE_BYTES)]
    elif files[0].num_bytes <= PLACE_BYTES:
        wanted = [(file, 0) for file in _spread(files, min(_MOST_FILES, SAMPLE_BYTES * len(files) // ends[-1]))]
    else:
        number = min(SAMPLE_BYTES, ends[-1]) // PLACE_BYTES
        points = [ends[-1] * (2 * i + 1) // (2 * number) for i in range(number)]
        middles = [(files[i], p - ends[i] + files[i].num_bytes) for p in points for i in [bisect_right(ends, p)]]
        wanted = [(file, max(0, middle - PLACE_BYTES // 2)) for file, middle in middles]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hbpack-sample") as pool:
        places = [*pool.map(_window, *zip(*wanted, strict=True))]
    if not any(place.num_bytes for place in places):  # A record or two make up the file.
        places.append(_window(files[0], 0))
    return Stratum(files, places, len(files) if files[0].format == "text" else None)


def _read(file: CorpusFile, start: int, stop: int) -> bytes:
    with Blocks(file, start, min(stop, file.num_bytes)) as blocks:
        return b"".join(iter(lambda: blocks.read(stop - start), b""))


def _window(file: CorpusFile, start: int, behind: int = _BEHIND) -> Place:
    """Read whole records, those that begin within `PLACE_BYTES` from `start` on, as a file in memory."""
    before = min(start, 1)  # A border there is that of a record which begins at the start.
    text = _read(file, start - before, start + PLACE_BYTES + behind)
    border = _border(_read(file, 0, _BEHIND) if start else text) if file.format == "json" else _LINE
    first = border.search(text, 0, PLACE_BYTES) if start else None
    end = border.search(text, PLACE_BYTES - 1 + before)
    if not end and start + PLACE_BYTES + behind < file.num_bytes and behind < _LONGEST:
        return _window(file, start, 16 * behind)
    begin = first.end() if first else len(text) if start else 0  # Where none begins, there is none.
    text, size = text[begin : end.start() if end else None], min(PLACE_BYTES, file.num_bytes - start)
    held = b"[%s]" % text.strip().removeprefix(b"[").removesuffix(b"]") if file.format == "json" else text
    file = file._replace(content=held, num_bytes=len(held), stamp="", fingerprint="sample")
    return Place(CorpusSlice(file, 0, len(held)), len(text), size)


def _border(head: bytes) -> re.Pattern[bytes]:
    """Make the pattern of what is between the elements of an array: before an object of the first one's first key."""
    first = _FIRST_KEY.match(head)
    return re.compile(rb"(?<=\})\s*,\s*(?=\{\s*%s)" % re.escape(first[1]) if first else rb"(?!)")


def _sample_units(files: list[CorpusFile]) -> Stratum:
    """Sample tables, files of token ids, and compressed files."""
    places, num_rows, some = [], 0, _spread(files, 16)
    for file in some:
        slices, sizes, rows = _units(file._replace(fingerprint="sample"))
        most, total = SAMPLE_BYTES / len(some), max(sum(sizes), 1)
        number = max(1, int(most * len(slices) / total))
        units = [*zip(slices, sizes, strict=True)]
        chosen = _spread(units, number) if file.compression == "none" else units[:number]
        for slice_, size in chosen:
            every = max(1, int(size * len(chosen) / most))
            own = file.num_bytes * size / total / every
            places.append(Place(slice_._replace(every=every), own, own))
        num_rows += rows
    found = Stratum(files, places)
    return found._replace(num_records=num_rows * found.num_bytes / Stratum(some, []).num_bytes if num_rows else None)


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Take so many items, evenly."""
    number = min(len(items), most)
    return [items[(2 * i + 1) * len(items) // (2 * number)] for i in range(number)]


def _units(file: CorpusFile) -> tuple[list[CorpusSlice], list[int], int]:
    """List slices to choose from, their sizes, uncompressed, and the rows of all, where the file says so."""
    with suppress(DamagedFileError):
        if file.format == "parquet" and (groups := row_groups(file)):
            rows, sizes = zip(*groups, strict=True)
            return [CorpusSlice(file, i, i + 1) for i in range(len(groups))], [*sizes], sum(rows)
    slices = cut_file(file, PLACE_BYTES)
    size = PLACE_BYTES if file.compression != "none" else file.num_bytes // max(len(slices), 1)
    return slices, [size] * len(slices), 0
