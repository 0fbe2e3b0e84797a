"""Runs each task in its own process, so that its time and memory can be measured and its crash harms no other task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from packer_cli.engine.processes import describe_exit, end_server, process_context, start_worker, starting_workers
from packer_cli.errors import HbpackError

Task = TypeVar("Task")
Result = TypeVar("Result")


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
    context = process_context(preload)
    todo = deque(enumerate(tasks))
    running: dict[Any, tuple[int, Any]] = {}
    try:
        while todo or running:
            while todo and len(running) < workers:
                number, task = todo.popleft()
                receiving, sending = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(sending, function, task), daemon=True)
                try:
                    with starting_workers():
                        process.start()
                except KeyboardInterrupt:
                    end_server()  # Otherwise it might go on compiling.
                    raise
                sending.close()  # Otherwise the pipe would stay open after the process ends.
                running[receiving] = (number, process)
            for receiving in wait(list(running)):
                number, process = running[receiving]
                outcome = _receive(receiving, process)
                del running[receiving]
                yield number, outcome
    finally:
        for receiving, (_, process) in running.items():
            process.kill()
            process.join()
            receiving.close()


def _receive(receiving: Any, process: Any) -> Any:
    try:
        outcome = receiving.recv()
    except (EOFError, OSError):
        process.join()
        outcome = Failed(describe_exit(process.exitcode))
    process.join()
    receiving.close()
    return outcome


def _run(sending: Connection, function: Callable[[Any], Any], task: Any) -> None:
    start_worker()
    outcome: Any
    try:
        outcome = function(task)
    except (HbpackError, ValueError) as error:
        outcome = Failed(" ".join(str(error).split()))
    except MemoryError:
        outcome = Failed("out of memory; try fewer --workers")
    except Exception as error:  # A bug in one task must not hide what the others found.
        outcome = Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
    with suppress(BrokenPipeError):  # Interrupted: nobody is listening, and nothing should be printed.
        sending.send(outcome)
    sending.close()
