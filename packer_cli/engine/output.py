"""Outputs of parts: resumable, and made by the tasks of a job array, the last of which completes them.

A task of a stage makes a part, in any process and in any order: it writes the files of the part, each of which gets
its name when it is whole and synced (`Sink`). Then `Parts` writes a *marker* that vouches for them: a JSON file with
the part's fingerprint, its files with their checksums, what the stage needs to know about it, and a checksum of all of
this. If the run is killed, the next one keeps every part whose files still match its marker, and makes the others.

When all parts are finished, the stage writes a *listing*, such as `tokens.json`, which vouches for the whole output,
and removes the markers. Parts of other content have files of other names, and a part that is made again has the same
bytes, so the listing holds until it is replaced.

An ordinary run is the only task of its array: it makes its share, which is all parts, and completes the output.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from packer_cli.engine.array import ArrayIds, ArrayRecords, ArrayTask, TaskShare
from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress, Stopwatch, say
from packer_cli.engine.sink import FinishedPart, Task, remove_work
from packer_cli.errors import BusyError, RunError
from packer_cli.files import fingerprint, write_text
from packer_cli.folder_lock import TaskLock, add_note, find_holders, waiting
from packer_cli.format.checksums import require_damage
from packer_cli.remote.path import is_remote, paths_below
from packer_cli.sizes import counted
from packer_cli.version import __version__

_STARTED = "started"
"""Object in a remote work folder: folders exist only as names of objects."""


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
    ) -> None:
        """Describe the output; reads and writes nothing.

        Args:
            folder: the output folder.
            work: name of the folder in it that holds the markers while parts are missing.
            listing: name of the file in it that vouches for the finished output.
            sizes: of each task, for progress.
            facts: the kind of `FinishedPart.facts`.
        """
        self.finished: dict[str, FinishedPart] = {}
        """Finished parts, by name."""
        self.work = folder / work
        self._folder = folder
        self._listing = folder / listing
        self._facts = facts
        self._tasks = tasks
        self.sizes = {task.name: size for task, size in zip(tasks, sizes, strict=True)}
        """The sizes of all tasks, by name."""

    @property
    def todo(self) -> list[Task]:
        """The tasks whose parts are not finished, in order."""
        return [task for task in self._tasks if task.name not in self.finished]

    def find(self, engine: Engine, listed: Mapping[str, FinishedPart]) -> None:
        """Find the intact parts of earlier runs. Price: reading their files once.

        Args:
            listed: the parts that the listing vouches for, by name.
        """
        there, is_listed = paths_below(self.work), self._listing.exists()

        def find_part(task: Task) -> FinishedPart | None:
            marked = self._read_marker(task.name) if self._marker(task.name) in there else None
            known = (part for part in (listed.get(task.name), marked) if part is not None)
            current = (p for p in known if (p.fingerprint, p.release) == (task.fingerprint, __version__))
            return next((part for part in current if self._is_intact(part, is_listed=is_listed)), None)

        for _, part in engine.run_threads(find_part, self._tasks):
            if part is not None:
                self.finished[part.name] = part

    def _is_intact(self, part: FinishedPart, *, is_listed: bool) -> bool:
        return all(file.is_intact(self._folder / file.path, is_listed=is_listed) for file in part.files)

    def begin(self, progress: Progress) -> None:
        """Begin to make what is missing.

        Args:
            progress: told the sizes of finished tasks, and of all.
        """
        self._progress = progress
        self._done, self._total = sum(self.sizes[name] for name in self.finished), sum(self.sizes.values())
        if self.todo:
            self.work.mkdir(parents=True, exist_ok=True)
            if is_remote(self.work):  # Something has to say whose files these are.
                (self.work / _STARTED).write_bytes(b"")
        progress(self._done, self._total)

    def make(self, engine: Engine, work: Callable[[Task], FinishedPart]) -> None:
        """Make the parts that are missing, after `begin`."""
        with closing(engine.run_writing(work, self.todo)) as outcomes:
            for _, part in outcomes:
                self.mark(part)

    def mark(self, part: FinishedPart) -> None:
        """Write the marker of a part, after `begin`.

        Raises:
            RunError: this machine does not see the files, which a node of a cluster has written.
        """
        paths = () if is_remote(self._folder) else (self._folder / file.path for file in part.files)
        missing = next((path for path in paths if not path.exists()), None)
        if missing is not None:
            raise RunError(
                f"{str(missing)!r}, which a node has written, does not exist on this machine; name an output folder "
                "that this machine and all nodes share"
            )
        value = part.value()
        marker = json.dumps({"part": value, "xxh3": fingerprint(value)})
        write_text(self._marker(part.name), marker, sync=False)  # If it is lost, the part is only made again.
        self.finished[part.name] = part
        self._done += self.sizes[part.name]
        self._progress(self._done, self._total)

    def _marker(self, name: str) -> Path:
        return self.work / f"{name}.json"

    def _read_marker(self, name: str) -> FinishedPart | None:
        try:
            marker = json.loads(self._marker(name).read_bytes())
            if not isinstance(marker, dict) or marker.get("xxh3") != fingerprint(marker.get("part")):
                return None
            return FinishedPart.read(marker["part"], self._facts)
        except (OSError, ValueError) as error:
            require_damage(error)
            return None


Result = TypeVar("Result")


class Output(ABC, Generic[Result]):
    """A folder of parts, and the listing that vouches for them."""

    command: ClassVar[str]
    """The `hbpack` command that makes it."""
    name: ClassVar[str]
    """Name for people, such as `the token store`."""
    facts: ClassVar[Any] = dict[str, Any]
    """The kind of `FinishedPart.facts`."""
    folder: Path
    """The one that is locked."""
    work: Path
    """Holds markers and records until the listing is written; see `Parts`."""
    listing: Path

    @abstractmethod
    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        """Check the folder, and lock it for a task, or for this run alone."""

    @abstractmethod
    def make_share(self, engine: Engine, share: TaskShare) -> Result | None:
        """Make what is missing of a share, and record it.

        Returns the output if it was complete already; then the share has been checked, and repaired.
        """

    @abstractmethod
    def complete(self, engine: Engine, share: TaskShare, parts: Sequence[Mapping[str, FinishedPart]]) -> Result:
        """Make the listing, after `make_share`. A run that was killed in it is followed by another.

        Args:
            parts: of each task, by name, in order.
        """

    @abstractmethod
    def describe(self, result: Result) -> str:
        """Describe the content of a complete output in a line."""


def produce(output: Output[Result], engine: Engine, ids: ArrayIds | None = None) -> Result | None:
    """Make an output.

    Args:
        ids: make the share of a task of a job array. The last task to end completes the output.

    Returns:
        What came of it; None for a task that could not complete it.

    Raises:
        BusyError: another run writes to the folder, or another process runs the same task.
    """
    records = ArrayRecords(output.work)
    task = records.find_task(ids) if ids else ArrayTask(0, 1)
    if not ids or task.num_tasks == 1:
        with output.hold(None):
            return make_whole(output, engine)
    lock = TaskLock(output.command, task.index)

    def announce(word: str) -> list[str]:
        add_note(output.folder, lock, word)
        return [holder.note for task, holder in find_holders(output.folder).items() if task != lock]

    share, watch = TaskShare(records, task, ids, announce), Stopwatch()
    with output.hold(lock):
        was_complete = output.make_share(engine, share) is not None
    if was_complete:
        say(f"{output.name} is complete, and the files of task {task} are intact")
    else:
        made = f"made {counted(len(share.finished), 'part')} ({watch})"
        say(made if share.finished else f"{output.name} has no part for task {task}")
    result = _complete(output, engine, share) if output.work.exists() else None
    if result is not None:
        say(f"all tasks are done, and {output.name} is complete: {output.describe(result)}")
    elif not was_complete and records.pin() is not None:  # Otherwise another task has completed it meanwhile.
        done = len(records.done())
        is_last = done == task.num_tasks
        rest = "the last one to end completes the output" if is_last else "hbpack status says which are not"
        say(f"task {task} is done; {done:,} of {task.num_tasks:,} tasks are done, {rest}")
    return result


def make_whole(output: Output[Result], engine: Engine) -> Result:
    """Make an output alone: the share of the one task there is. The caller holds the folder."""
    share = TaskShare(ArrayRecords(output.work))
    result = output.make_share(engine, share)
    if result is None:
        result = output.complete(engine, share, [share.finished])
    remove_work(output.work)  # Last, so that a run that is killed is followed by one that completes it again.
    return result


def _complete(output: Output[Result], engine: Engine, share: TaskShare) -> Result | None:
    """Complete an output if all tasks are done; None if one runs at this moment, which then does the same.

    The records go last, so that a run that is killed is followed by one that completes the output again.
    """
    records = ArrayRecords(output.work)
    if records.pin() is not None and not records.is_complete():
        return None
    with suppress(BusyError), waiting(0), output.hold(None):
        parts = share.all_parts(output.facts)
        result = None if parts is None else output.complete(engine, share, parts)
        if result is not None or (records.pin() is None and output.listing.exists()):
            remove_work(output.work)  # Or what is left of it, by a task that was killed here.
        return result
    return None
