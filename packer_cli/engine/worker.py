"""A process that does one task after another."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from packer_cli.engine.processes import describe_exit, start_worker
from packer_cli.errors import RunError

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""How a process ends by what it does. What else ends it comes from outside, and says nothing of its task."""


@dataclass(frozen=True)
class Died:
    """A task whose process crashed."""

    exitcode: int
    """As of `multiprocessing`: a signal's number below 0."""

    @property
    def signal_name(self) -> str:
        """SIGSEGV and the like; of an exit, its code."""
        return signal.Signals(-self.exitcode).name if self.exitcode < 0 else f"exit code {self.exitcode}"

    def __str__(self) -> str:
        return describe_exit(self.exitcode)


class _RemoteTracebackError(Exception):
    """Where in the worker an error was raised; stands as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Worker:
    """The process and the pipe to it."""

    def __init__(self, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # Else the end of the process would not end the pipe.

    def send(self, function: Callable[[Any], Any], task: Any) -> None:
        """Give it a task; `receive` tells when it is gone."""
        with suppress(BrokenPipeError):
            self.connection.send((function, task))

    def receive(self) -> Any:
        """The result of its task, or how it died.

        Raises:
            RunError: it was killed, most often for want of memory, or ended otherwise from outside.
            Exception: what the task raised.
        """
        try:
            is_error, outcome, text = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self.connection.close()
            if self._process.exitcode == -signal.SIGKILL:
                raise RunError(
                    "a worker process was killed, perhaps for want of memory; run the same command again to go on, "
                    "with fewer --workers"
                ) from None
            if -self._process.exitcode not in CRASHES:
                raise RunError(
                    f"a worker process failed: {describe_exit(self._process.exitcode)}; run the same command again to "
                    "go on"
                ) from None
            return Died(self._process.exitcode)
        if is_error:
            self.end()
            raise outcome from _RemoteTracebackError(text)
        return outcome

    def end(self) -> None:
        """Let it end, when it has nothing to do."""
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.end()


def _serve(connection: Connection) -> None:
    start_worker()
    while True:
        try:
            function, task = connection.recv()
        except EOFError:
            return
        answer: tuple[bool, Any, str]
        try:
            answer = (False, function(task), "")
        except Exception as error:
            answer = (True, _sendable(error), traceback.format_exc())
        with suppress(BrokenPipeError):  # Interrupted: nobody listens any longer.
            connection.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error, or one in its place where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return error
