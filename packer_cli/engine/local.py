"""Tasks on the processes of this machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import wait
from typing import Any, TypeVar

from packer_cli.engine.processes import interrupts_end_server, process_context, starting_workers
from packer_cli.engine.progress import Progress
from packer_cli.engine.signals import interrupts_later
from packer_cli.engine.worker import Died, Worker

Task = TypeVar("Task")
Result = TypeVar("Result")


def default_workers() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalEngine:
    """Runs tasks on worker processes; with one worker, in this process.

    Workers are forked from a clean server process that has imported `preload` once: that is safe beside threads, and
    starts while this process is still reading its inputs. Use it as a context manager.
    """

    def __init__(self, workers: int, preload: Sequence[str] = (), *, isolates: bool = False) -> None:
        """Start nothing yet.

        Args:
            isolates: each task of `run` gets a process of its own, even with one worker; whatever ends that process
                is the task's result.
        """
        self.workers = workers
        self._preload = list(preload)
        self._isolates = isolates
        self._idle: list[Worker] = []
        self._leaving: list[Worker] = []
        self._busy: dict[Any, Worker] = {}

    def __enter__(self) -> LocalEngine:
        if self.workers > 1:
            process_context(self._preload)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_busy()  # After an error whoever asked for their results may not have let go.
        self.release()
        while self._leaving:
            self._leaving.pop().end()

    def release(self) -> None:
        """Let idle workers end while other work goes on, which gives their memory back. `run` would start others."""
        for worker in self._idle:
            worker.connection.close()
        self._leaving += self._idle
        self._idle = []

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        is_risky: Callable[[Task], bool] = lambda task: False,
    ) -> Iterator[tuple[int, Result | Died]]:
        """Yield (index of the task, result) as tasks end; they begin in order. The first error ends the run.

        A task whose process crashes has that for a result, and the others go on.

        Args:
            is_risky: which tasks may crash: they never run in this process.

        Raises:
            RunError: workers cannot be started, or one was killed, most often for want of memory.
        """
        if self.workers > 1 or self._isolates:
            yield from self._run_on_workers(function, tasks)
            return
        for number, task in enumerate(tasks):
            if is_risky(task):
                for _, outcome in self._run_on_workers(function, [task]):
                    yield number, outcome
            else:
                yield number, function(task)

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
                    number, worker = numbers.pop(connection), self._busy.pop(connection)
                    outcome = worker.receive()
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
        worker.send(function, task)

    def _kill_busy(self) -> None:
        while self._busy:
            self._busy.popitem()[1].kill()

    def _start(self) -> Worker:
        # A worker that is half started cannot be ended; but what is preloaded may compile kernels for long.
        with starting_workers(), interrupts_end_server() if self._isolates else interrupts_later():
            return Worker(process_context(self._preload))

    def find_faults(
        self,
        find_fault: Callable[[Task], str | None],
        items: Sequence[Task],
        sizes: Sequence[int],
        progress: Progress | None = None,
    ) -> list[tuple[Task, str]]:
        """The items with a fault and what it is, in order; found on threads.

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
        """As `run`, on threads of this process: for tasks that spend their time in kernels and in writing."""
        if self.workers == 1:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            futures = {pool.submit(function, task): number for number, task in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    yield futures.pop(future), future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
