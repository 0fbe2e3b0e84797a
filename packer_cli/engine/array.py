"""Job arrays: N tasks, on any machines and in any order, make one output together.

Each task makes the parts of its share (`packer_cli.engine.array`), and then writes a *record* of them. The first
task *pins* what all of them must agree on. The pin and the records are in the folder `array` of the output's work
folder (`packer_cli.engine.parts`). The last task to end finds all N records: it completes the output
from them and removes the folder, so that nothing tells how many tasks made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

from packer_cli.engine.parts import PIN, remove_work
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import ConfigError
from packer_cli.files import fingerprint, remove_folder, write_json
from packer_cli.format.checksums import require_damage
from packer_cli.format.records import json_values, read_record
from packer_cli.version import __version__

_RECORD = re.compile(r"task-(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """What all tasks of an array agree on."""

    num_tasks: int
    first_id: int
    id_step: int
    agreed: dict[str, str]
    """What decides the output, by its name for people: values or fingerprints."""
    facts: Any = field(default_factory=dict)
    """What completing the output needs besides the parts: JSON values, of a record of the stage's own."""
    release: str = __version__

    @property
    def fingerprint(self) -> str:
        """Of what must be equal in all tasks."""
        return fingerprint(self.num_tasks, self.agreed, self.release)

    def id_of(self, index: int) -> int:
        """The id that the scheduler gives to a task."""
        return self.first_id + index * self.id_step


def array_expression(pin: Pin, tasks: Sequence[int]) -> str:
    """The ids of these tasks, as Slurm's `--array` takes them.

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
        self._pin = work / PIN
        self.folder = self._pin.parent

    def pin(self) -> Pin | None:
        """What the tasks agreed on; None if no task has begun, or the output is complete."""
        try:
            return read_record(Pin, json.loads(self._pin.read_bytes()))
        except (OSError, ValueError) as error:
            require_damage(error)
            return None

    def find_task(self, ids: ArrayIds) -> ArrayTask | None:
        """The task that a run is; None for an array of one, which is an ordinary run.

        Raises:
            ConfigError: the ids do not fit the array that has begun, or the number of tasks is not known.
        """
        pin = self.pin()
        if ids.is_explicit and ids.num_tasks == 1:
            return None
        most = ids.num_tasks or 0
        # A scheduler also says fewer when some tasks run again.
        is_new = pin is None or most > pin.num_tasks or (ids.is_explicit and most != pin.num_tasks)
        if pin is None or (is_new and not self.done()):
            if ids.num_tasks is None:
                raise ConfigError(f"{ids.source} is {ids.id}, and does not say of how many; give --shard {ids.id}/N")
            return None if ids.num_tasks == 1 else ArrayTask((ids.id - ids.first) // ids.step, ids.num_tasks)
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
        """The tasks that have written records, in order."""
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
        """How far the array is, which tasks are missing, and what to do; None if no array makes the output."""
        pin = self.pin()
        if pin is None:
            return None
        done = self.done()
        missing = sorted({*range(pin.num_tasks)} - {*done})
        if not missing:
            return f"{counted_tasks(pin.num_tasks)} are done; run one of them again, which completes it"
        which = f"task {missing[0]} is" if len(missing) == 1 else f"{len(missing):,} are"
        one = f"{missing[0]}/{pin.num_tasks}" if len(missing) == 1 else f"I/{pin.num_tasks} for each of them"
        return (
            f"{len(done):,} of {counted_tasks(pin.num_tasks)} are done, and {which} missing or still running; run the "
            f"same command with --array={array_expression(pin, missing)} in Slurm, or with --shard {one}"
        )

    def parts(self, facts: Any = dict[str, Any]) -> dict[str, FinishedPart] | None:
        """The parts of all tasks, by name, in order; None if a record is missing. A damaged record is removed.

        Args:
            facts: the kind of `FinishedPart.facts`.
        """
        pin = self.pin()
        if pin is None:
            return None
        found = [self.read(index, pin, facts) for index in range(pin.num_tasks)]
        if None in found:
            return None
        return {name: part for parts in found if parts for name, part in parts.items()}

    def read(self, index: int, pin: Pin, facts: Any = dict[str, Any]) -> dict[str, FinishedPart] | None:
        """The parts of one task; None if it is not done."""
        path = self.path(index)
        try:
            value = json.loads(path.read_bytes())
            if value["pin"] != pin.fingerprint:
                raise ValueError
            return {part.pop("name"): FinishedPart.read(part, facts) for part in value["parts"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            path.unlink(missing_ok=True)
            return None

    def reset(self) -> None:
        """Remove the pin and all records; markers still vouch for the parts."""
        remove_folder(self.folder)

    def path(self, index: int) -> Path:
        """The record of a task."""
        return self.folder / f"task-{index:06d}.json"

    def write_pin(self, pin: Pin) -> None:
        """Begin an array."""
        write_json(self._pin, asdict(pin))

    def remedies(self) -> str:
        """What to do if the number of tasks is another one."""
        return (
            "--shard 0/1 to make the rest in one run, or remove "
            f"{str(self.folder)!r} to start over with another number (finished parts are kept)"
        )


@dataclass
class ArrayShare:
    """One task of an array: what its stage needs to make its share of an output."""

    _records: ArrayRecords
    task: ArrayTask
    _ids: ArrayIds
    """The source of the task's number."""
    _join: Callable[[str], None]
    """Makes known that the task has joined the pin of this fingerprint, as long as it runs."""
    _joined: Callable[[], Collection[str]]
    """The fingerprints that the other running tasks have joined. A pin that is not among them and has no records binds
    nobody."""
    _agreed: dict[str, str] = field(default_factory=dict)

    def join(self, agreed: dict[str, str], facts: Any) -> None:
        """Pin what the tasks agree on, or check that this task does; see `Pin`.

        Raises:
            ConfigError: this task does not agree with the others.
        """
        self._agreed = agreed
        is_whole = self._ids.num_tasks == self.task.num_tasks  # Otherwise the ids are those of a few tasks only.
        mine = Pin(
            num_tasks=self.task.num_tasks,
            first_id=self._ids.first if is_whole else 0,
            id_step=self._ids.step if is_whole else 1,
            agreed=agreed,
            facts=json_values(facts),
        )
        pin = self._records.pin()
        if pin is None or not (
            pin.fingerprint == mine.fingerprint or self._records.done() or pin.fingerprint in self._joined()
        ):
            self._records.write_pin(mine)
        elif pin.fingerprint == mine.fingerprint and pin.facts != mine.facts:
            # Such as another --max-rejected: the last word counts.
            self._records.write_pin(replace(pin, facts=mine.facts))
        self._join(self._check().fingerprint)

    def recorded(self, facts: Any = dict[str, Any]) -> dict[str, FinishedPart]:
        """The parts in the task's record, with facts of this kind; none if it is not done."""
        pin = self._records.pin()
        return (pin and self._records.read(self.task.index, pin, facts)) or {}

    @property
    def has_begun(self) -> bool:
        """Whether a task of an array that is not over has pinned it."""
        return self._records.pin() is not None

    def start_over(self) -> None:
        """Remove the pin, all records and all markers: what the other tasks have made may be wrong."""
        remove_work(self._records.work)

    def discard(self) -> None:
        """Remove the task's record, as it has something to do after all."""
        self._records.path(self.task.index).unlink(missing_ok=True)

    def record(self, parts: Mapping[str, FinishedPart]) -> None:
        """Record that the task is done: its parts, by name, in order.

        Raises:
            ConfigError: the other tasks have agreed on something else meanwhile.
        """
        listed = [{"name": name, **part.value()} for name, part in parts.items()]
        write_json(self._records.path(self.task.index), {"pin": self._check().fingerprint, "parts": listed})

    def _check(self) -> Pin:
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
        mine = {**self._agreed, "the release of hbpack": __version__}
        theirs = {**pin.agreed, "the release of hbpack": pin.release}
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise ConfigError(
                    f"task {self.task} and the tasks before it differ in {name}; run all tasks with the same, or "
                    f"remove {str(self._records.folder)!r} to start over (finished parts that fit are kept)"
                )
        return pin


def counted_tasks(number: int) -> str:
    """Such as `the 4 tasks of an array`."""
    return f"the {number:,} tasks of an array"


Item = TypeVar("Item")


@dataclass(frozen=True)
class ArrayTask:
    """Task `index` of `num_tasks`, counted from 0. Its share is a range of the work, about as large as the others."""

    index: int
    num_tasks: int

    def share(self, items: Sequence[Item], sizes: Sequence[int]) -> list[Item]:
        """Its items, in order: those whose middle is in its range.

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
    """Which task this run is, as far as the command line or the scheduler says, and how the ids follow each other."""

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
