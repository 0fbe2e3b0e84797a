"""Work that every engine does with the tasks of a stage. The result is the same for all engines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from packer_cli.engine.processes import Died
from packer_cli.engine.progress import Progress

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
        """Let idle workers end while other work goes on, which gives their memory back. `run` would start others."""

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
