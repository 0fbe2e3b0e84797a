"""Runs each task in its own process, so that its time and memory can be measured and its crash harms no other task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from packer_cli.engine.local import LocalEngine
from packer_cli.engine.worker import Died
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
    with LocalEngine(workers, preload, isolates=True) as engine:
        for number, outcome in engine.run(partial(attempt, function), tasks):
            yield number, Failed(str(outcome)) if isinstance(outcome, Died) else outcome


def attempt(function: Callable[[Task], Result], task: Task) -> Result | Failed:
    """The result of a task in this process, or why it has none."""
    try:
        return function(task)
    except (HbpackError, ValueError) as error:
        return Failed(" ".join(str(error).split()))
    except MemoryError:
        return Failed("out of memory; try fewer --workers")
    except Exception as error:  # A bug in one task must not hide what the others found.
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")
