"""How an output of parts is made: by one run, or by the tasks of a job array, the last of which completes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from packer_cli.engine.array import ArrayIds, ArrayRecords, ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import remove_work
from packer_cli.engine.progress import say
from packer_cli.errors import BusyError
from packer_cli.folders import TaskLock, add_note, find_holders

Result = TypeVar("Result")


class Output(ABC, Generic[Result]):
    """A folder of parts, and the listing that vouches for them."""

    command: ClassVar[str]
    """The `hbpack` command that makes it."""
    folder: Path
    """The one that is locked."""
    work: Path
    """Holds markers and records until the listing is written; see `packer_cli.engine.parts`."""
    listing: Path

    @abstractmethod
    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        """Check the folder, and lock it for a task, or for this run alone."""

    @abstractmethod
    def make(self, engine: Engine) -> Result:
        """Make what is missing, and the listing."""

    @abstractmethod
    def make_share(self, engine: Engine, share: ArrayShare) -> bool:
        """Make what is missing of a task's share, and record it.

        Returns whether the output was complete already; then the share has been checked, and repaired.
        """

    @abstractmethod
    def complete(self) -> Result:
        """Make the listing from the records of all tasks. A run that was killed in it is followed by another."""

    @abstractmethod
    def say_complete(self, result: Result) -> None:
        """Say what the tasks have made.

        Raises:
            RunError: it cannot be used.
        """


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
    task = ids and records.find_task(ids)
    if not (ids and task):
        with output.hold(None):
            return output.make(engine)
    lock = TaskLock(output.command, task.index)

    def joined() -> list[str]:
        return [holder.note for holder in find_holders(output.folder) if holder.task != lock]

    with output.hold(lock):
        share = ArrayShare(records, task, ids, lambda word: add_note(output.folder, lock, word), joined)
        was_complete = output.make_share(engine, share)
    result = _complete(output, records) if records.is_complete() else None
    if result is None and was_complete:
        _remove_rest(output, records)
    elif result is None and records.pin() is not None:  # Otherwise another task has completed it meanwhile.
        done = len(records.done())
        is_last = done == task.num_tasks
        rest = "the last one to end completes the output" if is_last else "hbpack status says which are not"
        say(f"task {task} is done; {done:,} of {task.num_tasks:,} tasks are done, {rest}")
    return result


def _complete(output: Output[Result], records: ArrayRecords) -> Result | None:
    """Complete an output of which all tasks are done; None if one runs at this moment, which then does the same.

    The records go last, so that a run that is killed is followed by one that completes the output again.
    """
    try:
        with output.hold(None):
            if records.parts() is None:  # Another task has completed it, or a record is damaged.
                return None
            result = output.complete()
            remove_work(records.work)
    except BusyError:
        return None
    output.say_complete(result)
    return result


def _remove_rest(output: Output[Result], records: ArrayRecords) -> None:
    """Remove the records that a run which had completed the output left when it was killed."""
    if records.work.exists():
        with suppress(BusyError), output.hold(None):  # A task that runs does the same when it ends.
            if records.pin() is None and output.listing.exists():
                remove_work(records.work)
