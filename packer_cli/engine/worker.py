"""A process that runs one task after another."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from packer_cli.engine.processes import describe_exit, start_worker
from packer_cli.errors import RunError

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a process causes itself. Any other comes from outside and says nothing about its task."""


@dataclass(frozen=True)
class Died:
    """A task whose process ended before it gave a result."""

    exitcode: int
    """As in `multiprocessing`: a negative number is a signal."""

    @property
    def signal_name(self) -> str:
        """The signal, such as SIGSEGV; after an exit, `exit code N`."""
        return signal.Signals(-self.exitcode).name if self.exitcode < 0 else f"exit code {self.exitcode}"

    def __str__(self) -> str:
        return describe_exit(self.exitcode)

    @property
    def is_crash(self) -> bool:
        """Whether the task itself ended the process, rather than somebody from outside."""
        return -self.exitcode in CRASHES

    def require_crash(self) -> None:
        """Raise RunError if the process was killed, usually because memory ran out, or was ended from outside."""
        if self.exitcode == -signal.SIGKILL:
            raise RunError(
                "a worker process was killed, perhaps for want of memory; run the same command again to go on, with "
                "fewer --workers"
            )
        if not self.is_crash:
            raise RunError(f"a worker process failed: {self}; run the same command again to go on")


class _RemoteTracebackError(Exception):
    """The worker's traceback, attached to its error as the cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def to_bytes(function: Callable[[Any], Any], task: Any) -> bytes:
    """A task as a worker receives it."""
    return pickle.dumps((function, task))


def outcome_of(answer: bytes) -> Any:
    """The result that a worker sent. Raises the task's own error."""
    is_error, outcome, text = pickle.loads(answer)
    if is_error:
        raise outcome from _RemoteTracebackError(text)
    return outcome


class Worker:
    """A process and the pipe to it."""

    def __init__(self, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()  # Otherwise the pipe would stay open after the process ends.

    def send(self, function: Callable[[Any], Any], task: Any) -> None:
        """Send a task; if the process is gone, `receive` reports it."""
        self.send_bytes(to_bytes(function, task))

    def receive(self) -> Any:
        """The result of the task, or `Died` if the process ended. Raises the task's own error."""
        answer = self.receive_bytes()
        if isinstance(answer, Died):
            return answer
        try:
            return outcome_of(answer)
        except Exception:
            self.end()
            raise

    def send_bytes(self, message: bytes) -> None:
        """Send what `to_bytes` made."""
        with suppress(BrokenPipeError):
            self.connection.send_bytes(message)

    def receive_bytes(self) -> bytes | Died:
        """The answer, for `outcome_of`."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            self.connection.close()
            return Died(self._process.exitcode)

    def end(self) -> None:
        """End the idle process and wait for it."""
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.end()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a process that is started from importing the main script: tasks are of hbpack's modules.

    A script without `if __name__ == "__main__"` that calls hbpack would call it again in each worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(connection: Connection) -> None:
    start_worker()
    while True:
        try:
            function, task = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[bool, Any, str]
        try:
            answer = (False, function(task), "")
        except Exception as error:
            answer = (True, _sendable(error), traceback.format_exc())
        with suppress(BrokenPipeError):  # Interrupted: nobody is listening, and nothing should be printed.
            connection.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error, or a RunError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return error
