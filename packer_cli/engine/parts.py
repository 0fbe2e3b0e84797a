"""Resumable parts: an output that many tasks make, each of which has to succeed only once.

A task writes the files of its part under temporary names (`Sink`), in any process and in any order. The caller hands
the result to `Parts`, which syncs and renames the files and then writes a *marker* that vouches for them: a JSON file
with the part's fingerprint, its files with their checksums, what the stage needs to know about it, and a checksum of
all of this. If the run is killed, the next one keeps every part whose files still match its marker, and makes the
others.

When all parts are finished, the stage writes a *listing*, such as `tokens.json`, which vouches for the whole output,
and removes the markers. If a later run replaces parts, the listing moves to the work folder first, where it still
vouches for the parts that stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress
from packer_cli.engine.sink import FileRange, FinishedPart, Task, Written, find_range
from packer_cli.files import fingerprint, move_file, remove_folder, write_text
from packer_cli.format.checksums import require_damage
from packer_cli.remote.path import is_remote, paths_below
from packer_cli.version import __version__

PIN = "array/pin.json"
"""Object in the work folder of a job array's output: what its tasks agree on; see `packer_cli.engine.array`."""
_STARTED = "started"
"""Object in a remote work folder: folders exist only as names of objects."""


def find_listing(folder: Path, work: str, listing: str) -> Path:
    """Find the listing, in place or moved to the work folder; the file may be missing."""
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
        facts: Any = dict[str, Any],
        repairs: bool = False,
    ) -> None:
        """Describe the output; reads and writes nothing.

        Args:
            folder: the output folder.
            work: name of the folder in it that holds the markers, and files that parts share, while parts are missing.
            listing: name of the file in it that vouches for the finished output.
            sizes: of each task, for progress.
            facts: the kind of `FinishedPart.facts`.
            repairs: the listing vouches for these very parts; it stays, and those that are damaged are replaced.
        """
        self.finished: dict[str, FinishedPart] = {}
        """Finished parts, by name."""
        self.work = folder / work
        self._folder = folder
        self._listing = folder / listing
        self._facts = facts
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
            return all(file.is_intact(*self._place(file), is_listed=is_listed) for file in found[name].files)

        for i, intact in engine.run_threads(is_intact, names):
            if intact:
                self.finished[names[i]] = found[names[i]]

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
        """Commit the parts that are given to the block's value, while the block runs.

        A thread does so, one part at a time, so that waiting for the disk costs no work. The block ends when all parts
        are committed, also after an error: what is finished stays for the next run.

        Args:
            progress: told the sizes of finished tasks, and of all.
        """
        if self.todo and not self._repairs:
            if is_remote(self.work):
                self.begin()
            self.work.mkdir(parents=True, exist_ok=True)
        done, total = sum(self._sizes[name] for name in self.finished), sum(self._sizes.values())
        progress(done, total)
        before: Future[None] | None = None

        def add(written: Written) -> FinishedPart:
            nonlocal before, done
            try:
                if before is not None:
                    before.result()
            except BaseException:
                written.sink.discard()
                raise
            self.begin()
            before = thread.submit(self._commit, written)
            self.finished[written.name] = written.part
            done += self._sizes[written.name]
            progress(done, total)
            return written.part

        with ThreadPoolExecutor(1) as thread:
            yield add
        if before is not None:
            before.result()

    def _commit(self, written: Written) -> None:
        written.sink.commit()
        if not self._repairs:
            value = written.part.value()
            marker = json.dumps({"part": value, "xxh3": fingerprint(value)})
            write_text(self._marker(written.name), marker, sync=False)  # If it is lost, the part is only made again.

    def _place(self, file: FileRange) -> tuple[Path, int]:
        """Find the bytes: in a file under its final name, or until the file has that, in the work folder if shared."""
        final = self._folder / file.path
        return find_range(final, self.work / file.path, file.offset) if file.is_shared else (final, file.offset)

    def _marker(self, name: str) -> Path:
        return self.work / f"{name}.json"

    def _read_markers(self, engine: Engine) -> dict[str, FinishedPart]:
        """Read the markers that there are, by the names of their parts."""
        there = paths_below(self.work)
        names = [task.name for task in self._tasks if self._marker(task.name) in there]
        read = dict(engine.run_threads(self._read_marker, names))
        return {names[i]: part for i, part in read.items() if part is not None}

    def _read_marker(self, name: str) -> FinishedPart | None:
        try:
            marker = json.loads(self._marker(name).read_bytes())
            if not isinstance(marker, dict) or marker.get("xxh3") != fingerprint(marker.get("part")):
                return None
            return FinishedPart.read(marker["part"], self._facts)
        except (OSError, ValueError) as error:
            require_damage(error)
            return None
