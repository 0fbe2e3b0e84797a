"""Resumable parts: an output that many tasks make, each of which has to succeed only once.

A task writes the files of its part under temporary names (`Sink`), in any process and in any order. The caller hands
the result to `Parts`, which syncs and renames the files and then writes a *marker* that vouches for them: a JSON file
with the part's fingerprint, its files with their checksums, and what the stage needs to know about it. If the run is
killed, the next one keeps every part whose files still match its marker, and makes the others.

When all parts are finished, the stage writes a *listing*, such as `tokens.json`, which vouches for the whole output,
and removes the markers. If a later run replaces parts, the listing moves to the work folder first, where it still
vouches for the parts that stay.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from packer_cli import __version__
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Progress
from packer_cli.files import (
    HashingFile,
    commit_file,
    move_file,
    remove_folder,
    sync_file,
    temporary_file,
    write_json,
)
from packer_cli.format.checksums import file_checksum, require_damage
from packer_cli.format.records import read_record
from packer_cli.remote.path import RemotePath, is_remote, paths_below

PIN = "array/pin.json"
"""Object in the work folder of a job array's output: what its tasks agree on; see `packer_cli.engine.array`."""
_STARTED = "started"
"""Object in a remote work folder: folders exist only as names of objects."""


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
    """Of a remote file: what the storage said of it when it was uploaded."""

    def value(self) -> dict[str, Any]:
        """What a listing says of it: nothing of the storage that it is in."""
        return {name: value for name, value in vars(self).items() if name != "version"}

    def is_intact(self, file: Path, *, is_listed: bool = False) -> bool:
        """Whether `file` holds these bytes. Price: reading them once, unless its size is wrong.

        A remote file is not read if it still is the version that was uploaded.

        Args:
            is_listed: a listing in its place vouches for it, so no run has written to it since. That, too, is enough
                for a remote file of this size; whoever reads it compares the checksum.
        """
        try:
            if isinstance(file, RemotePath) and (self.version or is_listed):
                is_same = self.version is None or self.version == file.version()
                return is_same and file.stat().st_size == self.num_bytes
            size, stop = file.stat().st_size, self.offset + self.num_bytes
            fits = size >= stop if self.is_shared else size == stop
            return fits and file_checksum(file, self.offset, self.num_bytes) == self.xxh3
        except OSError as error:
            require_damage(error)
            return False


@dataclass(frozen=True, kw_only=True)
class FinishedPart:
    """A finished part: the contents of its marker."""

    fingerprint: str
    files: tuple[FileRange, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """What the stage needs to know about the part: JSON values."""
    release: str = __version__
    """The hbpack release that wrote the marker; another one makes the part again."""


class Sink:
    """Where a task writes its files. Records their checksums."""

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
        version = final.version() if isinstance(final, RemotePath) else None
        self.files.append(FileRange(path=path, num_bytes=file.num_bytes, xxh3=file.hexdigest(), version=version))

    @contextmanager
    def stretch(self, path: str, offset: int) -> Iterator[HashingFile]:
        """Open the range from `offset` on of a file that the parts share; no other part may write there.

        The file is in the work folder, and its size was set before.
        """
        place = self._work / path
        try:
            with place.open("r+b") as file:
                file.seek(offset)
                hashing = HashingFile(file)
                yield hashing
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = error.filename or str(place)  # A failed write does not name its file.
            raise
        self.files.append(
            FileRange(path=path, offset=offset, num_bytes=hashing.num_bytes, xxh3=hashing.hexdigest(), is_shared=True)
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


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of a task: a part whose files still have temporary names. Can be pickled."""

    name: str
    part: FinishedPart
    sink: Sink


def write_part(write: Callable[[Task, Sink], dict[str, Any]], task: Task, folder: Path, work: str) -> Written:
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


def find_listing(folder: Path, work: str, listing: str) -> Path:
    """The listing, in place or moved to the work folder; it may be missing."""
    final = folder / listing
    return final if final.exists() else folder / work / listing


def remove_work(work: Path) -> None:
    """Remove the work folder of an output.

    The pin of a job array goes first. If the run is killed, no task then takes what is left for an array that goes on.
    """
    (work / PIN).unlink(missing_ok=True)
    remove_folder(work)


class Parts(Generic[Task]):
    """The parts of one output, and which of them are finished."""

    def __init__(
        self,
        folder: Path,
        work: str,
        listing: str,
        tasks: Sequence[Task],
        sizes: Sequence[int],
        *,
        repairs: bool = False,
    ) -> None:
        """Describe the output; reads and writes nothing.

        Args:
            folder: the output folder.
            work: name of the folder in it that holds the markers, and files that parts share, while parts are missing.
            listing: name of the file in it that vouches for the finished output.
            sizes: of each task, for progress.
            repairs: the listing vouches for these very parts; it stays, and those that are damaged are replaced.
        """
        self.finished: dict[str, FinishedPart] = {}
        """By name."""
        self.work = folder / work
        self._folder = folder
        self._listing = folder / listing
        self._repairs = repairs
        self._tasks = tasks
        self._has_begun = False
        self._sizes = {task.name: size for task, size in zip(tasks, sizes, strict=True)}

    @property
    def todo(self) -> list[Task]:
        """The tasks whose parts are not finished, in order."""
        return [task for task in self._tasks if task.name not in self.finished]

    def find(self, engine: Engine, listed: Mapping[str, FinishedPart]) -> None:
        """Find the intact parts of earlier runs. Price: reading their files once.

        Args:
            listed: the parts that the listing vouches for (see `find_listing`), by name.
        """
        found: dict[str, FinishedPart] = {}
        markers = self._read_markers(engine)
        for task in self._tasks:
            for part in (markers.get(task.name), listed.get(task.name)):
                if part and (part.fingerprint, part.release) == (task.fingerprint, __version__):
                    found[task.name] = part
        names = list(found)
        is_listed = self._listing.exists()

        def is_intact(name: str) -> bool:
            return all(file.is_intact(self._place(file), is_listed=is_listed) for file in found[name].files)

        for i, intact in engine.run_threads(is_intact, names):
            if intact:
                self.finished[names[i]] = found[names[i]]

    def trust(self, recorded: Mapping[str, FinishedPart]) -> None:
        """Take parts as finished without reading them, by name: who recorded them has just made or checked them."""
        for task in self._tasks:
            part = recorded.get(task.name)
            if part is not None and part.fingerprint == task.fingerprint:
                self.finished[task.name] = part

    def begin(self) -> None:
        """Call before anything in the output changes: the listing moves to the work folder."""
        if self._repairs or self._has_begun:
            return
        self._has_begun = True
        self.work.mkdir(parents=True, exist_ok=True)
        if is_remote(self.work):
            # Files get their names before their markers are written, so none may vouch for an earlier file, and
            # something else has to say whose files these are.
            (self.work / _STARTED).write_bytes(b"")
            for path in paths_below(self.work) & {self._marker(task.name) for task in self.todo}:
                path.unlink()
        with suppress(FileNotFoundError):
            move_file(self._listing, self.work / self._listing.name)

    @contextmanager
    def committing(self, progress: Progress) -> Iterator[Callable[[Written], FinishedPart]]:
        """While the block runs, commit the parts that are given to its value.

        A thread does so, so that waiting for the disk costs no work. The block ends when all parts are committed, also
        after an error: what is finished stays for the next run. After Ctrl-C, the parts that wait are discarded.

        Args:
            progress: told the sizes of finished tasks, and of all.
        """
        if self.todo and not self._repairs:
            if is_remote(self.work):
                self.begin()
            self.work.mkdir(parents=True, exist_ok=True)
        done, total = sum(self._sizes[name] for name in self.finished), sum(self._sizes.values())
        progress(done, total)
        waiting: deque[tuple[Future[None], Written]] = deque()

        def add(written: Written) -> FinishedPart:
            nonlocal done
            while waiting and waiting[0][0].done():
                try:
                    waiting.popleft()[0].result()
                except BaseException:
                    written.sink.discard()
                    raise
            self.begin()
            waiting.append((thread.submit(self._commit, written), written))
            self.finished[written.name] = written.part
            done += self._sizes[written.name]
            progress(done, total)
            return written.part

        with ThreadPoolExecutor(1) as thread:
            try:
                yield add
            except KeyboardInterrupt:
                thread.shutdown(cancel_futures=True)
                for future, written in waiting:
                    if future.cancelled():
                        written.sink.discard()
                raise
        for future, _ in waiting:
            future.result()

    def close(self) -> None:
        """Remove the markers, after the listing is written."""
        remove_work(self.work)

    def _commit(self, written: Written) -> None:
        written.sink.commit()
        if not self._repairs:
            self._write_marker(written.name, written.part)

    def _place(self, file: FileRange) -> Path:
        """A file under its final name; until it has that, a shared file is in the work folder."""
        final = self._folder / file.path
        return self.work / file.path if file.is_shared and not final.exists() else final

    def _marker(self, name: str) -> Path:
        return self.work / f"{name}.json"

    def _read_markers(self, engine: Engine) -> dict[str, FinishedPart]:
        """The markers that there are, by the names of their parts."""
        there = paths_below(self.work)
        names = [task.name for task in self._tasks if self._marker(task.name) in there]
        read = dict(engine.run_threads(self._read_marker, names))
        return {names[i]: part for i, part in read.items() if part is not None}

    def _read_marker(self, name: str) -> FinishedPart | None:
        try:
            return read_record(FinishedPart, json.loads(self._marker(name).read_bytes()))
        except (OSError, ValueError) as error:
            require_damage(error)
            return None

    def _write_marker(self, name: str, part: FinishedPart) -> None:
        """Not synced: if the marker is lost, the part is only made again."""
        write_json(self._marker(name), asdict(part), sync=False)
