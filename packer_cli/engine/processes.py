"""Worker processes: what runs in one; how they start, are kept from Ctrl-C and SIGTERM, and end."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from packer_cli.errors import RunError
from packer_cli.remote.retries import note_failures, take_failures
from packer_cli.signals import STOPS

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a process causes itself. Any other comes from outside and says nothing about its task."""


@dataclass(frozen=True)
class Died:
    """A task whose process ended before it gave a result."""

    exitcode: int
    """Exit code as in `multiprocessing`: a negative number is a signal."""

    @property
    def signal_name(self) -> str:
        """The signal, such as SIGSEGV; after an exit, `exit code N`."""
        return signal.Signals(-self.exitcode).name if self.exitcode < 0 else f"exit code {self.exitcode}"

    def __str__(self) -> str:
        if self.exitcode == -signal.SIGKILL:
            return "its process was killed, perhaps for want of memory; try fewer --workers"
        if self.exitcode < 0:
            return f"its process was ended by {self.signal_name}"
        return f"its process ended with {self.signal_name}"

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


def to_bytes(function: Callable[[Any], Any], task: Any) -> bytes:
    """Write a task as a worker receives it."""
    return pickle.dumps((function, task))


def outcome_of(answer: bytes | Died) -> Any:
    """Return the result that a worker sent, or `Died`. Raises the task's own error."""
    if isinstance(answer, Died):
        return answer
    is_error, outcome, failures = pickle.loads(answer)
    note_failures(failures)
    if is_error:
        raise outcome
    return outcome


class Worker:
    """A process and the pipe to it."""

    def __init__(self, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()  # Otherwise the pipe would stay open after the process ends.

    def send(self, message: bytes) -> None:
        """Send what `to_bytes` made; if the process is gone, `receive` reports it."""
        with suppress(BrokenPipeError):
            self.connection.send_bytes(message)

    def receive(self) -> bytes | Died:
        """Receive the answer, for `outcome_of`."""
        try:
            message: bytes = self.connection.recv_bytes()
            return message
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
        try:
            is_error, outcome = False, function(task)
        except Exception as error:
            is_error, outcome = True, _sendable(error)
        with suppress(BrokenPipeError):  # Interrupted: nobody is listening, and nothing should be printed.
            connection.send((is_error, outcome, take_failures()))


def _sendable(error: Exception) -> Exception:
    """Return the error, or a RunError with its text if it cannot be pickled, with a note of its traceback."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RunError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    error.add_note(note)
    return error


_DESCRIPTORS = 12
"""More than a process needs to start another one, which takes pipes and a socket."""
_Imports = tuple[str, ...]
_chosen: _Imports = ()
"""Imports that the server was told, from which processes are forked now."""
_others: dict[_Imports, dict[str, Any]] = {}
"""`multiprocessing`'s state of the other servers, which wait to be chosen again."""
_settings: dict[_Imports, dict[str, str]] = {}
"""The settings of each server."""


def process_context(preload: Sequence[str] = (), settings: Mapping[str, str] | None = None) -> Any:
    """Make a context whose processes are forked from a server that imported `preload`; start the server if needed.

    Servers with other imports keep running until this process ends. One with the same imports and other settings is
    replaced; its processes must have ended. Without fork, processes are spawned.

    Args:
        settings: environment variables of the server, for what it imports.

    Raises:
        RunError: the server cannot be started.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        imports, wanted = tuple(preload), dict(settings or {})
        _choose_server(imports)
        if _settings.setdefault(imports, wanted) != wanted:
            _end_chosen()
            _settings[imports] = wanted
        context.set_forkserver_preload([*imports])
        with starting_workers(), _interrupts_blocked(), _environment(wanted):
            forkserver.ensure_running()
    return context


def _choose_server(imports: _Imports) -> None:
    """Let processes be forked from the server with these imports, which may have to be started."""
    global _chosen
    if imports != _chosen:
        state: dict[str, Any] = vars(forkserver._forkserver)
        _others[_chosen] = dict(state)
        state.update(_others.pop(imports, vars(forkserver.ForkServer())))
        _chosen = imports


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def end_servers() -> None:
    """Kill the servers, even if one is importing or compiling; starting another process starts a new one."""
    for imports in (_chosen, *_others):
        _choose_server(imports)
        _end_chosen()


def _end_chosen() -> None:
    server: Any = forkserver._forkserver
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        server._stop()  # Waits for its end and forgets it.


@contextmanager
def starting_workers() -> Iterator[None]:
    """Turn a failure to start a process into a RunError, but for too few descriptors.

    These are checked ahead: the server, to which half of a request has been sent, would print a traceback.
    """
    try:
        with ExitStack() as opened:
            for _ in range(_DESCRIPTORS):
                opened.enter_context(open(os.devnull, "rb"))
        yield
    except (OSError, EOFError) as error:  # Such as the broken pipe of a server that has ended.
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # Fewer workers would be no remedy.
        raise RunError(
            f"worker processes cannot be started ({str(error) or type(error).__name__}); try --workers 1"
        ) from None


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends; processes started inside never receive them.

    Ctrl-C reaches all processes of a terminal, and many job managers send SIGTERM to all processes of a job. Workers
    leave both to this process, which then ends them.
    """
    resource_tracker.ensure_running()  # Otherwise it starts with the server, and unblocks the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker() -> None:
    """Call in a worker: ignore Ctrl-C and SIGTERM, and exit when the parent process has ended, for whatever reason."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
