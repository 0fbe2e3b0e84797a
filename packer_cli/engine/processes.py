"""Starting worker processes, keeping Ctrl-C and SIGTERM from them, and describing how they ended."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from packer_cli.engine.signals import STOPS
from packer_cli.errors import RunError

_DESCRIPTORS = 12
"""More than a process needs to start another one, which takes pipes and a socket."""
_Imports = tuple[str, ...]
_chosen: _Imports = ()
"""What the server was told to import from which processes are forked now."""
_others: dict[_Imports, dict[str, Any]] = {}
"""`multiprocessing`'s state of the other servers, which wait to be chosen again."""
_settings: dict[_Imports, dict[str, str]] = {}
"""The settings of each server."""


def process_context(preload: Sequence[str] = (), settings: Mapping[str, str] | None = None) -> Any:
    """A context whose processes are forked from a server that has imported `preload`; starts the server if needed.

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
        from multiprocessing import forkserver

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
    from multiprocessing import forkserver

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
    from multiprocessing import forkserver

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
        _check_descriptors()
        yield
    except (OSError, EOFError) as error:  # Such as the broken pipe of a server that has ended.
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # Fewer workers would be no remedy.
        raise RunError(
            f"worker processes cannot be started ({str(error) or type(error).__name__}); try --workers 1"
        ) from None


def _check_descriptors() -> None:
    opened: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def interrupts_end_servers() -> Iterator[None]:
    """Kill the servers when the run is interrupted: otherwise one might go on compiling."""
    try:
        yield
    except KeyboardInterrupt:
        end_servers()
        raise


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends; processes started inside never receive them.

    Ctrl-C reaches all processes of a terminal, and many job managers send SIGTERM to all processes of a job. Workers
    leave both to this process, which then ends them.
    """
    from multiprocessing import resource_tracker

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


def describe_exit(exitcode: int) -> str:
    """Say how a process ended that should have gone on."""
    if exitcode == -signal.SIGKILL:
        return "its process was killed, perhaps for want of memory; try fewer --workers"
    if exitcode < 0:
        return f"its process was ended by {signal.Signals(-exitcode).name}"
    return f"its process ended with exit code {exitcode}"
