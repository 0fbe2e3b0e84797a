"""Job arrays: N tasks, on any machines and in any order, make one output together.

Each task makes the parts of its share, and then writes a *record* of them. The first task *pins* what all of them
must agree on. The pin and the records are in the folder `array` of the output's work folder
(`packer_cli.engine.output`). The last task to end finds all N records: it completes the output from them
and removes the folder, so that nothing tells how many tasks made it.

An ordinary run is task 0 of 1. It has no records: it knows all parts when it completes the output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

from packer_cli.engine.sink import PIN, FinishedPart, remove_work
from packer_cli.errors import ConfigError
from packer_cli.files import fingerprint, remove_folder, write_json
from packer_cli.format.checksums import require_damage
from packer_cli.format.records import read_record
from packer_cli.version import __version__

_RECORD = re.compile(r"task-(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Facts that all tasks of an array agree on."""

    num_tasks: int
    first_id: int
    id_step: int
    agreed: dict[str, str]
    """Values or fingerprints that decide the output, by their names for people."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what must be equal in all tasks."""
        return fingerprint(self.num_tasks, self.agreed)

    def id_of(self, index: int) -> int:
        """Return the id that the scheduler gives to a task."""
        return self.first_id + index * self.id_step


def array_expression(pin: Pin, tasks: Sequence[int]) -> str:
    """Write the ids of these tasks, as Slurm's `--array` takes them.

    >>> array_expression(Pin(num_tasks=512, first_id=1, id_step=1, agreed={}), [2, 6, 7, 8])
    '3,7-9'
    """
    step = f":{pin.id_step}" if pin.id_step > 1 else ""
    words = []
    for _, run in groupby(enumerate(tasks), key=lambda item: item[1] - item[0]):
        ids = [pin.id_of(index) for _, index in run]
        words.append(f"{ids[0]}-{ids[-1]}{step}" if len(ids) > 1 else f"{ids[0]}")
    return ",".join(words)


class ArrayRecords:
    """The pin and the records of one output."""

    def __init__(self, work: Path) -> None:
        """Read nothing yet; `work` is the output's work folder."""
        self.work = work
        self.folder = (work / PIN).parent

    def pin(self) -> Pin | None:
        """Read what the tasks agreed on; None if no task has begun, or the output is complete."""
        try:
            return read_record(Pin, json.loads((self.work / PIN).read_bytes()))
        except (OSError, ValueError) as error:
            require_damage(error)
            return None

    def find_task(self, ids: ArrayIds) -> ArrayTask:
        """Find the task that a run is.

        Raises:
            ConfigError: the ids do not fit the array that has begun, or the number of tasks is not known.
        """
        pin = self.pin()
        if ids.is_explicit and ids.num_tasks == 1:
            return ArrayTask(0, 1)
        most = ids.num_tasks or 0
        # A scheduler also says fewer when some tasks run again.
        is_new = pin is None or most > pin.num_tasks or (ids.is_explicit and most != pin.num_tasks)
        if pin is None or (is_new and not self.done()):
            if ids.num_tasks is None:
                raise ConfigError(f"{ids.source} is {ids.id}, and does not say of how many; give --shard {ids.id}/N")
            return ArrayTask((ids.id - ids.first) // ids.step, ids.num_tasks)
        if ids.is_explicit and ids.num_tasks != pin.num_tasks:
            raise ConfigError(
                f"--shard {ids.id}/{ids.num_tasks}: {counted_tasks(pin.num_tasks)} make this output; give "
                f"--shard I/{pin.num_tasks}, or {self.remedies()}"
            )
        first, step = (0, 1) if ids.is_explicit else (pin.first_id, pin.id_step)
        index, rest = divmod(ids.id - first, step)
        if rest or not 0 <= index < pin.num_tasks:
            steps = f" in steps of {pin.id_step}" if pin.id_step > 1 else ""
            raise ConfigError(
                f"{ids.source} is {ids.id}: {counted_tasks(pin.num_tasks)} make this output, with the ids "
                f"{pin.first_id} to {pin.id_of(pin.num_tasks - 1)}{steps}; give one of these, or {self.remedies()}"
            )
        return ArrayTask(index, pin.num_tasks)

    def done(self) -> list[int]:
        """List the tasks that have written records, in order."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted(int(match[1]) for name in names if (match := _RECORD.fullmatch(name)))

    def is_complete(self) -> bool:
        """Whether all tasks have written records."""
        pin = self.pin()
        return pin is not None and len(self.done()) == pin.num_tasks

    def unfinished(self) -> str | None:
        """Say how far the array is, and where to look; None if no array makes the output."""
        pin = self.pin()
        if pin is None:
            return None
        done = f"{len(self.done()):,} of {counted_tasks(pin.num_tasks)} are done"
        return f"{done}; hbpack status says which are missing, and what makes the rest"

    def read(self, index: int, pin: Pin, facts: Any = dict[str, Any]) -> dict[str, FinishedPart] | None:
        """Read the parts of one task, by name, in order; None if it is not done. A damaged record is removed.

        Args:
            facts: the kind of `FinishedPart.facts`.
        """
        path = self.path(index)
        try:
            value = json.loads(path.read_bytes())
            if value["pin"] != pin.fingerprint:
                raise ValueError
            parts = [FinishedPart.read(part, facts) for part in value["parts"]]
            return {part.name: part for part in parts}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            path.unlink(missing_ok=True)
            return None

    def reset(self) -> None:
        """Remove the pin and all records; markers still vouch for the parts."""
        remove_folder(self.folder)

    def path(self, index: int) -> Path:
        """Return the path of a task's record."""
        return self.folder / f"task-{index:06d}.json"

    def remedies(self) -> str:
        """Say how to go on if the number of tasks is another one."""
        return (
            "--shard 0/1 to make the rest in one run, or remove "
            f"{str(self.folder)!r} to start over with another number (finished parts are kept)"
        )


def counted_tasks(number: int) -> str:
    """Count the tasks of an array in words, such as `the 4 tasks of an array`."""
    return f"the {number:,} tasks of an array"


Item = TypeVar("Item")


@dataclass(frozen=True)
class ArrayTask:
    """Task `index` of `num_tasks`, counted from 0. Its share is a range of the work, about as large as the others."""

    index: int
    num_tasks: int

    def share(self, items: Sequence[Item], sizes: Sequence[int]) -> list[Item]:
        """Return the task's items, in order: those whose middle is in its range.

        >>> [ArrayTask(index, 3).share("abcd", [1, 1, 1, 3]) for index in range(3)]
        [['a', 'b'], ['c'], ['d']]
        """
        total = sum(sizes)
        ends = accumulate(sizes)
        return [item for item, end, size in zip(items, ends, sizes, strict=True) if self.takes(end - size, end, total)]

    def takes(self, start: int, stop: int, total: int) -> bool:
        """Whether a piece of work, from `start` to `stop` of `total`, is its own; exactly one task takes it."""
        return self._of((start + stop) // 2, total) == self.index

    def overlaps(self, start: int, stop: int, total: int) -> bool:
        """Whether a piece of this piece of work may be its own."""
        return self._of(start, total) <= self.index <= self._of(stop, total)

    def _of(self, place: int, total: int) -> int:
        return min(place * self.num_tasks // max(total, 1), self.num_tasks - 1)

    def __str__(self) -> str:
        return f"{self.index}/{self.num_tasks}"


@dataclass(frozen=True, kw_only=True)
class ArrayIds:
    """Number of the task that this run is, as the command line or the scheduler gives it, and the sequence of ids."""

    id: int
    num_tasks: int | None
    """None if the scheduler does not say."""
    first: int = 0
    step: int = 1
    source: str = "--shard"
    """The option or the environment variable."""

    @property
    def is_explicit(self) -> bool:
        """Whether the user named the task, rather than the scheduler."""
        return self.source == "--shard"


class TaskShare:
    """The share of an output that a run makes; of an ordinary run, all of it, which leaves no records."""

    def __init__(
        self,
        records: ArrayRecords,
        task: ArrayTask = ArrayTask(0, 1),
        ids: ArrayIds | None = None,
        announce: Callable[[str], Collection[str]] = lambda fingerprint: (),
    ) -> None:
        """Make the share of this task.

        Args:
            ids: the source of the task's number.
            announce: makes known that the task joins the pin of this fingerprint, as long as it runs. Returns the
                fingerprints that the other running tasks have joined. A pin that is not among them and has no records
                binds nobody.
        """
        self._records, self.task, self._announce = records, task, announce
        self.finished: Mapping[str, FinishedPart] = {}
        """The parts of the share, by name, once it is recorded."""
        is_all = ids is not None and ids.num_tasks == task.num_tasks  # Otherwise the ids are of a few tasks only.
        first, step = (ids.first, ids.step) if ids and is_all else (0, 1)
        self._mine = Pin(num_tasks=task.num_tasks, first_id=first, id_step=step, agreed={})

    @property
    def is_whole(self) -> bool:
        """Whether the run makes all parts."""
        return self.task.num_tasks == 1

    def join(self, agreed: dict[str, str]) -> None:
        """Pin what the tasks agree on, or check that this task does; see `Pin`. The task is not done any more.

        An ordinary run may replace the parts of an array that has not ended, so it ends that array: no task is done.

        Raises:
            ConfigError: this task does not agree with the others.
        """
        if self.is_whole:
            self._records.reset()
            return
        self._mine = replace(self._mine, agreed={**agreed, "the release of hbpack": __version__})
        running = self._announce(self._mine.fingerprint)
        pin = self._records.pin()
        if pin is None or not (
            pin.fingerprint == self._mine.fingerprint or self._records.done() or pin.fingerprint in running
        ):
            write_json(self._records.work / PIN, asdict(self._mine))
        self._check()
        self._records.path(self.task.index).unlink(missing_ok=True)

    def start_over(self) -> None:
        """Remove the pin, all records and all markers: what the other tasks have made may be wrong."""
        if not self.is_whole:
            remove_work(self._records.work)

    def record(self, parts: Mapping[str, FinishedPart]) -> None:
        """Record that the task is done, with its parts, by name, in order.

        Raises:
            ConfigError: the other tasks have agreed on something else meanwhile.
        """
        self.finished = parts
        if self.is_whole:
            return
        self._check()
        values = [part.value() for part in parts.values()]
        write_json(self._records.path(self.task.index), {"pin": self._mine.fingerprint, "parts": values})

    def all_parts(self, facts: Any) -> list[Mapping[str, FinishedPart]] | None:
        """Return the parts of each task, by name, in order; None unless all are done.

        Args:
            facts: the kind of `FinishedPart.facts`.
        """
        pin = self._records.pin()
        if pin is None:
            return None
        found = [self._records.read(index, pin, facts) for index in range(pin.num_tasks)]
        return None if None in found else [parts for parts in found if parts is not None]

    def expire(self, tasks: Sequence[int]) -> list[int]:
        """Remove the records of tasks that have to run again. Returns their ids."""
        pin = self._records.pin() or self._mine
        for task in tasks:
            self._records.path(task).unlink(missing_ok=True)
        return [pin.id_of(task) for task in tasks]

    def _check(self) -> None:
        pin = self._records.pin()
        if pin is None:
            raise ConfigError(
                f"task {self.task}: the records of the array are gone, as another run has completed or removed the "
                "output; run the task again"
            )
        if pin.num_tasks != self.task.num_tasks:
            raise ConfigError(
                f"task {self.task}: {counted_tasks(pin.num_tasks)} make this output; {self._records.remedies()}"
            )
        for name, value in self._mine.agreed.items():
            if pin.agreed.get(name) != value:
                raise ConfigError(
                    f"task {self.task} and the tasks before it differ in {name}; run all tasks with the same, or "
                    f"remove {str(self._records.folder)!r} to start over (finished parts that fit are kept)"
                )


def merged(parts: Sequence[Mapping[str, FinishedPart]]) -> dict[str, FinishedPart]:
    """Merge the parts of all tasks, by name, in order."""
    return {name: part for each in parts for name, part in each.items()}
