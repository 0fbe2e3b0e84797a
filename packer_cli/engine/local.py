"""Engines: what each does with the tasks of a stage, and the one that runs them on processes of this machine.

The result is the same for all engines.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self, TypeVar

from packer_cli.engine.processes import (
    Died,
    Worker,
    end_servers,
    outcome_of,
    process_context,
    starting_workers,
    to_bytes,
)
from packer_cli.engine.progress import Progress
from packer_cli.errors import HbpackError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(AbstractContextManager["Engine"]):
    """Runs tasks. Use it as a context manager.

    Functions and tasks are pickled, unless they run on threads. A function that needs much, such as a plan, pickles as
    what opens it, and a process opens it once.
    """

    workers: int
    """Processes or threads of this machine."""

    @abstractmethod
    def release(self) -> None:
        """End idle workers, which gives their memory back. `run` would start others."""

    @abstractmethod
    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], *, is_risky: bool = False
    ) -> Iterator[tuple[int, Result | Died]]:
        """Yield (index of the task, result) as tasks end; they begin in order. The first error ends the run.

        A task whose process crashes has that for a result, and the others go on.

        Args:
            is_risky: whether a task may crash: then none runs in this process.

        Raises:
            RunError: workers cannot be started, or were killed, most often for want of memory.
        """

    def run_writing(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Generator[tuple[int, Result], None, None]:
        """Run tasks that spend their time in kernels and in writing, as `run`: on one machine, threads do them."""
        return self.run_threads(function, tasks)

    def find_faults(
        self,
        find_fault: Callable[[Task], str | None],
        items: Sequence[Task],
        sizes: Sequence[int],
        progress: Progress | None = None,
    ) -> list[tuple[Task, str]]:
        """Find the items with a fault, and the fault of each, in order, on threads of this process.

        Args:
            sizes: of the items, for progress.
        """
        found: dict[int, str] = {}
        done, total = 0, sum(sizes)
        for i, fault in self.run_threads(find_fault, items):
            if fault is not None:
                found[i] = fault
            done += sizes[i]
            if progress:
                progress(done, total)
        return [(items[i], found[i]) for i in sorted(found)]

    def run_threads(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Generator[tuple[int, Result], None, None]:
        """Run tasks as `run`, on threads of this process."""
        if self.workers == 1:
            yield from enumerate(map(function, tasks))
            return
        with ThreadPoolExecutor(self.workers) as pool:
            futures: dict[Any, int] = {pool.submit(function, task): number for number, task in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    yield futures.pop(future), future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


GROUPS = Path("/sys/fs/cgroup")
"""Folder that the control groups are mounted on."""


def default_workers() -> int:
    """Count the CPUs that this process may use; the last may be a part of one."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return num_cpus if quota is None else max(1, min(num_cpus, ceil(quota)))


def cpu_quota(groups: Path = GROUPS) -> float | None:
    """Return how many CPUs at a time the control group may use on average; None without a limit."""
    files = _limit_files(groups, "cpu", "cpu.max", "cpu.cfs_quota_us")
    return min(filter(None, map(_quota, files)), default=None)


def available_memory(groups: Path = GROUPS) -> int | None:
    """Return bytes of memory that this process may have: the machine's, or its control group's; None if unknown."""
    limits = []
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    files = _limit_files(groups, "memory", "memory.max", "memory.limit_in_bytes")
    limits += filter(None, map(_limit, files))
    return min(limits, default=None)


def _limit_files(groups: Path, controller: str, name: str, old_name: str) -> list[Path]:
    """List the files with the limits of this process's control group, and of those around it (versions 2 and 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = [groups / name, groups / controller / old_name]  # Those of a container.
    for line in lines:
        _, controllers, own = line.split(":", 2)
        root, found = (groups / controller, old_name) if controllers else (groups, name)
        if not controllers or controller in controllers.split(","):
            place = root / own.lstrip("/")
            files += [folder / found for folder in (place, *place.parents) if folder.is_relative_to(root)]
    return files


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # `max` is no limit.
        return None


def _quota(path: Path) -> float | None:
    with suppress(OSError, ValueError):  # `max` is no limit, nor is -1.
        quota, *period = path.read_text().split()
        return max(0, int(quota)) / int(*period or [path.with_name("cpu.cfs_period_us").read_text()])
    return None


class LocalEngine(Engine):
    """Runs tasks on worker processes; with one worker, in this process, unless they may crash.

    Workers are forked from a clean server process that has imported `preload` once: that is safe beside threads, and
    starts while this process is still reading its inputs.
    """

    def __init__(
        self,
        workers: int,
        preload: Sequence[str] = (),
        *,
        isolates: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            isolates: each task of `run` gets a process of its own, even with one worker; whatever ends that process
                is the task's result.
            settings: see `process_context`.
        """
        self.workers = workers
        self._preload = list(preload)
        self._settings = settings
        self._isolates = isolates
        self._idle: list[Worker] = []
        self._busy: dict[Any, Worker] = {}

    def __enter__(self) -> Self:
        if self.workers > 1 and self._preload:
            process_context(self._preload, self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_busy()  # After an error whoever asked for their results may not have let go.
        self.release()

    def release(self) -> None:
        """See `Engine`."""
        for worker in self._idle:
            worker.connection.close()
        while self._idle:
            self._idle.pop().end()

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], *, is_risky: bool = False
    ) -> Iterator[tuple[int, Result | Died]]:
        """See `Engine`."""
        if self.workers > 1 or self._isolates or is_risky:
            yield from self._run_on_workers(function, tasks)
        else:
            yield from enumerate(map(function, tasks))

    def _run_on_workers(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Died]]:
        todo = deque(enumerate(tasks))
        numbers: dict[Any, int] = {}
        try:
            while todo or numbers:
                while todo and len(numbers) < self.workers:
                    self._give(todo, numbers, self._idle.pop() if self._idle else self._start(), function)
                for connection in wait(list(numbers)):
                    outcome = outcome_of(self._busy[connection].receive())
                    number, worker = numbers.pop(connection), self._busy.pop(connection)
                    if self._isolates:
                        worker.end()
                    elif isinstance(outcome, Died):
                        outcome.require_crash()
                    elif todo:  # It goes on while the caller looks at what it gave.
                        self._give(todo, numbers, worker, function)
                    else:
                        self._idle.append(worker)
                    yield number, outcome
        finally:
            self._kill_busy()

    def _give(
        self, todo: deque[tuple[int, Any]], numbers: dict[Any, int], worker: Worker, function: Callable[[Any], Any]
    ) -> None:
        number, task = todo.popleft()
        numbers[worker.connection] = number
        self._busy[worker.connection] = worker
        worker.send(to_bytes(function, task))

    def _kill_busy(self) -> None:
        while self._busy:
            self._busy.popitem()[1].kill()

    def _start(self) -> Worker:
        with starting_workers():
            try:
                return Worker(process_context(self._preload, self._settings))
            except KeyboardInterrupt:  # A server may be compiling, or have half of a request.
                end_servers()
                raise


@dataclass(frozen=True)
class Failed:
    """A task without a result."""

    reason: str
    """One line, for people."""


def run_isolated(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int, preload: Sequence[str] = ()
) -> Iterator[tuple[int, Result | Failed]]:
    """Yield (index of the task, result) as tasks end; at most `workers` tasks run at a time.

    A task that raises or crashes yields `Failed`. Closing the iterator kills the tasks that still run. Price: one fork
    per task, of a server that has imported `preload`.

    Raises:
        RunError: processes cannot be started.
    """
    with LocalEngine(workers, preload, isolates=True) as engine:
        for number, outcome in engine.run(partial(attempt, function), tasks):
            yield number, Failed(str(outcome)) if isinstance(outcome, Died) else outcome


def attempt(function: Callable[[Task], Result], task: Task) -> Result | Failed:
    """Return the result of a task in this process, or the reason why it has none."""
    try:
        return function(task)
    except (HbpackError, ValueError) as error:
        return Failed(" ".join(str(error).split()))
    except MemoryError:
        return Failed("out of memory; try fewer --workers")
    except Exception as error:  # A bug in one task must not hide what the others found.
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
