"""The making of an output of parts: by the tasks of a job array, the last of which completes it.

An ordinary run is the only task of its array: it makes its share, which is all parts, and completes the output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from packer_cli.engine.array import ArrayIds, ArrayRecords, ArrayTask, TaskShare
from packer_cli.engine.local import Engine
from packer_cli.engine.parts import remove_work
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import BusyError
from packer_cli.folders import TaskLock, add_note, find_holders
from packer_cli.sizes import counted

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
    """Holds markers and records until the listing is written; see `packer_cli.engine.parts`."""
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
        return [holder.note for holder in find_holders(output.folder) if holder.task != lock]

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
    with suppress(BusyError), output.hold(None):
        parts = share.all_parts(output.facts)
        result = None if parts is None else output.complete(engine, share, parts)
        if result is not None or (records.pin() is None and output.listing.exists()):
            remove_work(output.work)  # Or what is left of it, by a task that was killed here.
        return result
    return None
