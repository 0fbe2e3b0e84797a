"""Tasks on the processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from packer_cli.errors import RunError

Task = TypeVar("Task")
Result = TypeVar("Result")


def default_workers() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_engine(workers: int | None = None) -> LocalEngine:
    """An engine for all stages. Enter it before the imports of the stages: its workers load at the same time."""
    return LocalEngine(workers or default_workers(), ["packer_cli.preload"])


class LocalEngine:
    """Runs tasks on worker processes; with one worker, in this process.

    Workers are forked from a clean server process that has imported `preload` once: that is safe beside threads, and
    starts while this process is still reading its inputs. Use it as a context manager.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        self.workers = workers
        self._preload = list(preload)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalEngine:
        if self.workers > 1:
            context = process_context(self._preload)
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=start_worker)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yield (index of the task, result) as tasks end. The first error ends the run.

        Raises:
            RunError: workers cannot be started, or one was killed, most often for want of memory.
        """
        if self._pool is None:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        with starting_workers(), _interrupts_later():  # A worker that is half started cannot be ended.
            futures = {self._pool.submit(function, task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was killed, perhaps for want of memory; run the same command again to go on, "
                "with fewer --workers"
            ) from None

    def run_threads(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
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


_preloaded: list[str] = []
"""What the server that runs was told to import."""


def process_context(preload: Sequence[str] = ()) -> Any:
    """Where processes come from: a server that imports `preload` once and is forked. It is started if none runs.

    One that imported something else is replaced; the processes that it started must have ended.

    Raises:
        RunError: the server cannot be started.
    """
    global _preloaded
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        if _preloaded != list(preload):
            end_server()
        _preloaded = list(preload)
        context.set_forkserver_preload(_preloaded)
        from multiprocessing import forkserver

        with starting_workers(), _interrupts_blocked():
            forkserver.ensure_running()
    return context


def end_server() -> None:
    """Kill the server, whatever it is importing or compiling; the next process that is started brings another."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        server._stop()  # It waits, and forgets the server.


@contextmanager
def starting_workers() -> Iterator[None]:
    """Failing to start a process becomes a RunError."""
    try:
        yield
    except (OSError, EOFError) as error:  # Among them the broken pipe of a server that ended.
        raise RunError(
            f"worker processes cannot be started ({str(error) or type(error).__name__}); try --workers 1"
        ) from None


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends, and for good in processes that are started inside.

    Ctrl-C reaches all processes of a terminal. Workers leave it to this process, which then ends them.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # It is started beside the server otherwise, and unblocks the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker() -> None:
    """In a worker: ignore Ctrl-C, and end when the process that started it is gone, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
