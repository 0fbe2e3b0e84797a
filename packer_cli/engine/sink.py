"""Files that a task writes: those of one part, under temporary names until the caller commits them.

A file that several parts share: each writes a range of it, and it gets its name when all have.
On a file system, the parts write in place, to a file in the work folder that has its size from the start. In remote
storage, where nothing can be written in place, each writes an object to the work folder; these are joined by a process
that has room for the whole file in `$TMPDIR`.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from packer_cli.errors import RunError
from packer_cli.files import HashingFile, commit_file, no_link, remove_folder, sync_file, temporary_file
from packer_cli.format.checksums import file_checksum, require_damage
from packer_cli.format.records import json_values, read_record
from packer_cli.remote.path import RemotePath, is_remote, version_of
from packer_cli.version import __version__

PIN = "array/pin.json"
"""Object in the work folder of a job array's output: what its tasks agree on; see `packer_cli.engine.array`."""


class PartTask(Protocol):
    """A task that makes one part."""

    @property
    def name(self) -> str:
        """The part's name in its output, also the path of its marker; the same in every run."""

    @property
    def fingerprint(self) -> str:
        """Covers everything that decides the part's bytes."""


Task = TypeVar("Task", bound=PartTask)


@dataclass(frozen=True, kw_only=True)
class FileRange:
    """Bytes that were written: a whole file, or a range of a file that several parts share."""

    path: str
    """Below the output folder."""
    offset: int = 0
    num_bytes: int
    xxh3: str
    """xxh3-128."""
    is_shared: bool = False
    version: str | None = None
    """Version of a remote file: what the storage said of it when it was uploaded."""

    def value(self) -> Mapping[str, object]:
        """Return what a listing says of the file: nothing of the storage that it is in."""
        return {name: value for name, value in vars(self).items() if name != "version"}

    def is_intact(self, file: Path, offset: int | None = None, *, is_listed: bool = False) -> bool:
        """Whether `file` holds these bytes. Price: reading them once, unless its size is wrong.

        A remote file is not read if it still is the version that was uploaded.

        Args:
            offset: where they are in it, unless that is `self.offset`.
            is_listed: a listing in its place vouches for it, so no run has written to it since. That, too, is enough
                for a remote file of this size; whoever reads it compares the checksum.
        """
        offset = self.offset if offset is None else offset
        try:
            size, stop = file.stat().st_size, offset + self.num_bytes
            if size != stop and not (self.is_shared and size > stop):
                return False
            if isinstance(file, RemotePath) and (self.version or is_listed):
                return self.version in (None, version_of(file.info()))
            return file_checksum(file, offset, self.num_bytes) == self.xxh3
        except OSError as error:
            require_damage(error)
            return False


@dataclass(frozen=True, kw_only=True)
class FinishedPart:
    """A finished part: the contents of its marker."""

    fingerprint: str
    files: tuple[FileRange, ...]
    facts: Any = field(default_factory=dict)
    """Facts that the stage needs to know about the part: a record of its own, or JSON values."""
    release: str = __version__
    """The hbpack release that wrote the marker; another one makes the part again."""

    def value(self) -> Mapping[str, object]:
        """Return what the marker says, as JSON values."""
        return {**vars(self), "facts": json_values(self.facts), "files": [vars(file) for file in self.files]}

    @classmethod
    def read(cls, value: Any, facts: Any) -> FinishedPart:
        """Read the part of `value`, with facts of this kind. Raises ValueError where they are of another one."""
        part = read_record(cls, value)
        return replace(part, facts=read_record(facts, part.facts))


class Sink:
    """Sink of the files that a task writes. Records their checksums."""

    def __init__(self, folder: Path, work: str) -> None:
        """Write below `folder`; `work` is as in `Parts`."""
        self.files: list[FileRange] = []
        self._folder = folder
        self._work = folder / work
        self._waiting: list[tuple[Path, Path]] = []
        self._is_synced = False

    @contextmanager
    def file(self, path: str, *, sync_early: bool = False) -> Iterator[HashingFile]:
        """Open a new file. It keeps a temporary name until `commit`.

        Args:
            sync_early: see `temporary_file`.
        """
        with temporary_file(self._folder / path, sync_early=sync_early) as (temporary, file):
            yield file
        final = self._folder / path
        self._waiting.append((temporary, final))
        self.files.append(
            FileRange(path=path, num_bytes=file.num_bytes, xxh3=file.hexdigest(), version=_version(final))
        )

    @contextmanager
    def stretch(self, path: str, offset: int) -> Iterator[HashingFile]:
        """Open the range from `offset` on of a file that the parts share (`packer_cli.engine.sink`)."""
        with write_range(self._work / path, offset) as file:
            yield file
        self.files.append(
            FileRange(
                path=path,
                offset=offset,
                num_bytes=file.num_bytes,
                xxh3=file.hexdigest(),
                is_shared=True,
                version=_version(find_range(self._folder / path, self._work / path, offset)[0]),
            )
        )

    def sync(self) -> None:
        """Sync the files ahead of `commit`, on the machine that wrote them."""
        for temporary, _ in self._waiting:
            sync_file(temporary)
        self._is_synced = True

    @property
    def missing(self) -> Path | None:
        """A temporary file that is not there, if any."""
        return next((temporary for temporary, _ in self._waiting if not temporary.exists()), None)

    def commit(self) -> None:
        """Sync the files and give them their final names."""
        for temporary, path in self._waiting:
            commit_file(temporary, path, is_synced=self._is_synced)

    def discard(self) -> None:
        """Remove the temporary files."""
        for temporary, _ in self._waiting:
            temporary.unlink(missing_ok=True)


class MemorySink(Sink):
    """Keeps the files of a task in memory."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__(Path(), "")
        self.contents: dict[str, io.BytesIO] = {}

    @contextmanager
    def file(self, path: str, *, sync_early: bool = False) -> Iterator[HashingFile]:
        """Open a new file, which is in `contents` from then on."""
        self.contents[path] = io.BytesIO()
        yield HashingFile(self.contents[path])


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of a task: a part whose files still have temporary names. Can be pickled."""

    name: str
    part: FinishedPart
    sink: Sink


def write_part(write: Callable[[Task, Sink], Any], task: Task, folder: Path, work: str) -> Written:
    """Run a task: `write` writes its files to the sink and returns the part's `facts`.

    Args:
        folder: the output folder.
        work: as in `Parts`.
    """
    sink = Sink(folder, work)
    try:
        facts = write(task, sink)
    except BaseException:
        sink.discard()
        raise
    part = FinishedPart(fingerprint=task.fingerprint, files=tuple(sink.files), facts=facts)
    return Written(name=task.name, part=part, sink=sink)


def _version(file: Path) -> str | None:
    return version_of(file.info()) if isinstance(file, RemotePath) else None


def remove_work(work: Path) -> None:
    """Remove the work folder of an output.

    The pin of a job array goes first. If the run is killed, no task then takes what is left for an array that goes on.
    """
    (work / PIN).unlink(missing_ok=True)
    remove_folder(work)


_BLOCK = 8 * 2**20


def make_room(final: Path, work: Path, num_bytes: int) -> None:
    """Create a shared file of this size in the work folder, keeping what an earlier run wrote to it."""
    if is_remote(final):
        return
    with suppress(FileNotFoundError):
        os.replace(final, work)
    try:
        with open(work, "ab", opener=no_link) as file:
            file.truncate(num_bytes)
    except OSError as error:
        error.filename = str(final)  # What it does not say.
        raise


@contextmanager
def write_range(work: Path, offset: int) -> Iterator[HashingFile]:
    """Write the range from `offset` on of the shared file `work`; no other part may write there.

    Synced when the block ends.
    """
    if is_remote(work):
        with temporary_file(_piece(work, offset)) as (_, hashing):
            yield hashing
        return
    try:
        with open(work, "r+b", opener=no_link) as file:
            file.seek(offset)
            hashing = HashingFile(file)
            yield hashing
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(work)  # A failed write does not name its file.
        raise


def find_range(final: Path, work: Path, offset: int) -> tuple[Path, int]:
    """Find the file with the range from `offset` on, and the range's start there: the shared file, or its object."""
    if not is_remote(final):
        return (final if final.exists() else work), offset
    piece = _piece(work, offset)
    return (piece, 0) if piece.exists() else (final, offset)


def finish_file(final: Path, work: Path, ranges: Sequence[tuple[int, int]]) -> None:
    """Give a shared file its name.

    Args:
        ranges: all of it, in order: where each begins, and its bytes.
    """
    if not isinstance(final, RemotePath):
        os.replace(work, final)
        return
    sources = [find_range(final, work, begin) for begin, _ in ranges]
    if all(source == final for source, _ in sources):
        return  # An earlier run has joined all that is there.
    with tempfile.TemporaryFile() as whole:
        for (source, offset), (_, left) in zip(sources, ranges, strict=True):
            with source.open("rb") as file:
                file.seek(offset)
                while left:
                    data = file.read(min(left, _BLOCK))
                    if not data:
                        raise RunError(f"{str(source)!r} has changed meanwhile; run again")
                    whole.write(data)
                    left -= len(data)
        whole.flush()
        final.upload(whole)


def _piece(work: Path, offset: int) -> Path:
    """Return the object of the range from `offset` on."""
    return work.with_name(f"{work.name}.{offset}")
