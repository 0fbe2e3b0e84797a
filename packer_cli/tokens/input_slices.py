"""The slices of the inputs that each part of the store holds.

Names and sizes of all files, the *listing*, decide which files are cut together; only such files are then read to cut.
So a part depends on the listing and on its own files, and one part can be made without a look into the others' files.
It is found again by what it holds, wherever it stands in the listing by then.

A record's key combines, in one integer, the number of its slice in the part and its line in the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import xxhash

from packer_cli.corpus.blocks import SMALL_BYTES
from packer_cli.corpus.discover import slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.types import CorpusFile, CorpusSlice, DocumentBatch
from packer_cli.corpus.unchanged import content_of, map_many, require_unchanged, restamped
from packer_cli.engine.local import Engine
from packer_cli.engine.processes import Died
from packer_cli.remote.system import is_url

COLUMNAR = ("parquet", "arrow", "datasets")
"""Formats that pyarrow reads. A damaged file may crash the process, or be read without an error."""
FILES_A_TASK = 64
GROUP_BYTES = 4 << 20
"""Most bytes of small files that share a part; also the smallest slice of a large file."""
GROUP_FILES = 4096
"""Most small files that share a part. Each part costs some 30 ms of its own."""
EXPANSION = 8
"""Number of bytes, about, that one compressed byte stands for."""


def is_columnar(file: CorpusFile) -> bool:
    """Whether pyarrow reads the file, which may crash the process."""
    return file.format in COLUMNAR


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Files that are cut together: small ones that share a part, or a larger one, each of whose slices has its own."""

    number: int
    """Place of the unit's first file in the listing."""
    files: tuple[CorpusFile, ...]
    is_shared: bool
    start: int
    """Weight of all files before the unit: about the bytes of their records, uncompressed."""
    stop: int
    """Sum of `start` and the unit's own weight."""
    is_divided: bool = False
    """Whether several tasks of an array share the parts of the file, each of which then reads all of it to cut it."""

    @property
    def weight(self) -> int:
        """The unit's own weight."""
        return self.stop - self.start

    def task_name(self, number: int = 0) -> str:
        """Name the task of one of its parts; small files share the first."""
        return f"{self.number:06d}-{number:04d}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The slices of one part."""

    name: str
    """Place of the part: its first file in the listing, and its slice of that file."""
    slices: tuple[CorpusSlice, ...]
    start: int
    """Approximate begin in the listing, by which a task takes the part; of the unit, unless that is divided."""
    stop: int
    """Approximate end in the listing."""


def list_units(files: Sequence[CorpusFile], num_tasks: int = 1) -> list[Unit]:
    """List units of all files, in order, from the files' names, sizes and formats alone; nothing is read.

    Where a group of small files ends is for the files around that place to say: a file that comes or goes changes its
    own group, maybe the next ones, and no group far behind it.

    Args:
        num_tasks: of the array; a file is divided if it is more than half the share of one, and not compressed.
    """
    groups: list[list[CorpusFile]] = []
    held = GROUP_BYTES + 1
    for file in files:
        if held + _weight(file) > GROUP_BYTES or _is_full(groups[-1], held, file):
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += _weight(file)
    units: list[Unit] = []
    number = start = 0
    for group in groups:
        stop = start + sum(map(_weight, group))
        units.append(
            Unit(number=number, files=tuple(group), is_shared=stop - start <= GROUP_BYTES, start=start, stop=stop)
        )
        number, start = number + len(group), stop
    return [replace(unit, is_divided=_may_divide(unit) and 2 * unit.weight * num_tasks > start) for unit in units]


def _may_divide(unit: Unit) -> bool:
    return not unit.is_shared and all(file.compression == "none" for file in unit.files)


def _is_full(group: Sequence[CorpusFile], held: int, file: CorpusFile) -> bool:
    """Whether a group that has room for a file ends before it: one that is half full may, at the files of some names.

    A larger file more often is such a file, so that groups are three quarters full, whatever the sizes.
    """
    if 2 * held <= GROUP_BYTES and 2 * len(group) <= GROUP_FILES:
        return False
    chance = 4 * max(_weight(file) / GROUP_BYTES, 1 / GROUP_FILES)
    name = f"{os.path.basename(file.path)} {file.num_bytes}"
    return (
        len(group) == GROUP_FILES or xxhash.xxh3_64_intdigest(name.encode(errors="surrogateescape")) < chance * 2**64
    )


def cut_units(
    units: Sequence[Unit],
    engine: Engine,
    *,
    made: Collection[str] | None = None,
    find_known: Callable[[CorpusFile], list[CorpusSlice] | None] = lambda file: None,
) -> list[Cut]:
    """Cut units into parts, in order; files without data have none. A file that crashes its reader is unreadable.

    Price: the price of `slice_corpus`; large files and columnar ones use all workers.

    Args:
        made: names of the tasks whose parts earlier runs may have made; None: all. Of other parts no fingerprint is
            compared, so small files whose only slice follows from their size are not read, and have no fingerprint.
        find_known: the slices of a file that need not be read, with its fingerprint; None for any other.

    Raises:
        InputError: a file cannot be read.
    """
    files = [
        (file, unit.is_shared and made is not None and unit.task_name() not in made)
        for unit in units
        for file in unit.files
    ]
    known = {number: slices for number, (file, _) in enumerate(files) if (slices := find_known(file))}
    known |= {
        number: [CorpusSlice(file=file, start=0, stop=file.num_bytes)]
        for number, (file, may_wait) in enumerate(files)
        if may_wait and number not in known and _is_one_slice(file)
    }
    of_file = iter(_cut_files([file for file, _ in files], engine, known))
    cuts: list[Cut] = []
    for unit in units:
        slices = [slice_ for _ in unit.files for slice_ in next(of_file)]
        parts = [tuple(slices)] if unit.is_shared else [(slice_,) for slice_ in slices]
        begun = unit.start
        for i, part in enumerate(parts):
            ended = unit.start + unit.weight * (i + 1) // len(parts)
            start, stop = (begun, ended) if unit.is_divided else (unit.start, unit.stop)
            if part:
                cuts.append(Cut(name=unit.task_name(i), slices=part, start=start, stop=stop))
            begun = ended
    return cuts


def _is_one_slice(file: CorpusFile) -> bool:
    """Whether a small file is one slice, whatever it holds. If a file cannot be opened, reading it will say why."""
    is_plain = file.format in ("jsonl", "text") and file.compression == "none" and file.num_bytes > 0
    return is_plain and not file.expected and (is_url(file.path) or os.access(file.path, os.R_OK))


def _cut_files(
    files: Sequence[CorpusFile], engine: Engine, known: Mapping[int, list[CorpusSlice]]
) -> list[list[CorpusSlice]]:
    """Find the slices of each file, with fingerprints, except for slices that `known` has by their file's number."""
    cut = dict(known)
    columnar = [number for number, file in enumerate(files) if is_columnar(file) and number not in cut]
    tasks = [columnar[i : i + FILES_A_TASK] for i in range(0, len(columnar), FILES_A_TASK)]
    while tasks:
        crashed: list[list[int]] = []
        for i, outcome in engine.run(_cut_each, [[files[n] for n in task] for task in tasks], is_risky=True):
            if not isinstance(outcome, Died):
                cut.update(zip(tasks[i], outcome, strict=True))
            elif len(tasks[i]) > 1:
                crashed += [[number] for number in tasks[i]]
            else:
                cut[tasks[i][0]] = [_unreadable(files[tasks[i][0]], outcome)]
        tasks = crashed
    large = [number for number, file in enumerate(files) if file.num_bytes > SMALL_BYTES and number not in cut]
    cut.update((large[i], found) for i, found in engine.run_threads(lambda n: slice_corpus([files[n]]), large))
    rest = [number for number in range(len(files)) if number not in cut]
    cut.update(zip(rest, _cut_each([files[number] for number in rest]), strict=True))
    return [cut[number] for number in range(len(files))]


def _cut_each(files: list[CorpusFile]) -> list[list[CorpusSlice]]:
    return map_many(lambda file: slice_corpus([file]), files)


def _unreadable(file: CorpusFile, died: Died) -> CorpusSlice:
    """Make one unreadable slice for a whole file that crashes its reader on opening."""
    content = content_of(file := restamped(file))
    require_unchanged(file)  # Else it may have crashed because it was being written.
    why = f"damaged: opening it crashes the reader ({died.signal_name})"
    return CorpusSlice.lost(file._replace(fingerprint=content), why)


def _weight(file: CorpusFile) -> int:
    is_dense = file.compression != "none" or file.format == "parquet"
    return file.num_bytes * (EXPANSION if is_dense else 1)


def without_crashes(slices: Sequence[CorpusSlice], engine: Engine) -> tuple[CorpusSlice, ...]:
    """Read again the slices of a part that crashed its worker, and mark the ones that crash again as unreadable."""
    marked = list(slices)
    for number, outcome in engine.run(read_all, slices, is_risky=True):
        if isinstance(outcome, Died):
            reason = (
                f"damaged: reading it from record {slices[number].first_line} on crashes the reader "
                f"({outcome.signal_name}); what it holds from there is left out"
            )
            marked[number] = slices[number]._replace(unreadable=reason)
    return tuple(marked)


LINE_BITS = 44
LINE = (1 << LINE_BITS) - 1


def read_slices(reader: SliceReader, slices: Sequence[CorpusSlice]) -> Iterator[DocumentBatch]:
    """Yield the records of the slices, in order; `line` is a record's key. The first slice's keys are its lines."""
    for number, slice_ in enumerate(slices):
        yield from reader.read(slice_, base=number << LINE_BITS)


def read_all(slice_: CorpusSlice) -> None:
    """Read a slice and discard it, to see whether reading it crashes."""
    for _ in SliceReader().read(slice_):
        pass
