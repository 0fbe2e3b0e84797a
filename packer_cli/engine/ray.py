"""Tasks on a Ray cluster, or on a Ray of this machine.

One task of Ray is one of ours, on one CPU. Nothing is asked of Ray but where tasks run: what is lost, by a node that
is preempted or a worker that is killed, is given out again here, so that the limit is ours and each end has its words.

A worker process of Ray passes tasks on to a process that it starts (`relay`), as `LocalEngine` does. So a task
crashes, is preloaded and caches just as on one machine, and a crash leaves Ray's own process to tell of it. Tasks and
results pass through as bytes: Ray's process imports none of the stages.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from packer_cli.engine.local import Engine, Result, Task, default_workers
from packer_cli.engine.processes import Died, Worker, end_servers, outcome_of, process_context, to_bytes
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError, RunError
from packer_cli.sizes import counted
from packer_cli.version import __version__

MOST_TRIES = 5
_CANCEL_SECONDS = 3.0


class RayEngine(Engine):
    """Runs tasks on Ray, which starts, or is joined, when the first of them comes."""

    def __init__(self, address: str | None, workers: int | None, preload: Sequence[str] = ()) -> None:
        """Start nothing yet.

        Args:
            address: of a cluster, as `ray.init` takes it; None: RAY_ADDRESS, else a Ray of this machine, for this run.
            workers: most tasks at a time; None: as many as the cluster has CPUs, also when it grows.
            preload: as for `LocalEngine`.
        """
        self.workers = default_workers()
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._most = workers
        self._preload = tuple(preload)
        self._is_started = self._is_own = False

    def __enter__(self) -> Self:
        check_address(self._address)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            stop()

    def release(self) -> None:
        """Do nothing: Ray ends idle workers."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], *, is_risky: bool = False
    ) -> Iterator[tuple[int, Result | Died]]:
        """See `Engine`. A task that is lost is run again, up to `MOST_TRIES` times."""
        if not tasks:
            return
        ray = self._start()
        submit = ray.remote(relay).options(num_cpus=1, max_retries=0).remote
        place = (__version__, os.getcwd(), self._preload)
        todo = deque(range(len(tasks)))
        tries: Counter[int] = Counter()
        running: dict[Any, int] = {}
        try:
            while todo or running:
                room = (self._most or 2 * num_cpus()) - len(running)  # Ray gives the next one out when a worker ends.
                for _ in range(min(room, len(todo))):
                    number = todo.popleft()
                    running[submit(to_bytes(function, tasks[number]), *place)] = number
                for ref in ray.wait(list(running), num_returns=1)[0]:
                    number = running.pop(ref)
                    outcome = _outcome(ray, ref)
                    if isinstance(outcome, _Lost):
                        tries[number] += 1
                        _check_tries(tries[number], outcome)
                        todo.appendleft(number)
                        continue
                    yield number, outcome
        finally:
            _cancel(ray, list(running))

    def run_writing(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Generator[tuple[int, Result], None, None]:
        """See `Engine`."""
        for number, outcome in self.run(function, tasks):
            if isinstance(outcome, Died):
                raise RunError(
                    f"a worker process crashed ({outcome.signal_name}); run the same command again to go on"
                )
            yield number, outcome

    def _start(self) -> Any:
        if not self._is_started:
            self._is_own = start(self._address, self._most)
            self._is_started = True
            say(f"running on {describe(self._address)}")
        import ray

        return ray


class _Lost(str):
    """Why a task has no result: nothing that the task did."""


def _outcome(ray: Any, ref: Any) -> Any:
    """Return the result of a task, `Died`, or `_Lost`. Raises the task's own error."""
    try:
        answer: bytes | Died | _Lost = ray.get(ref)
    except ray.exceptions.RayTaskError as error:  # From `relay`, or from importing it.
        if isinstance(error.cause, RunError):
            raise error.cause from None
        if isinstance(error.cause, (ImportError, AttributeError)):
            raise RunError(
                f"a node of Ray cannot run hbpack ({_one_line(error.cause)}); install hbpack "
                f"{__version__} on every node"
            ) from None
        return _Lost(_one_line(error.cause))
    except ray.exceptions.RayError as error:  # A worker that was killed, a node that is gone, or their objects.
        return _Lost(_one_line(error).split(". ")[0])
    if isinstance(answer, Died) and not answer.is_crash:
        return _Lost(str(answer))
    return answer if isinstance(answer, _Lost) else outcome_of(answer)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _check_tries(tries: int, lost: _Lost) -> None:
    if tries == MOST_TRIES:
        raise RunError(
            f"Ray lost the worker of a task {tries} times, the last time: {lost}; make sure that its nodes have "
            "enough memory and stay up, and run the same command again to go on"
        )


def _cancel(ray: Any, running: list[Any]) -> None:
    """End tasks, and wait until they have ended."""
    for is_forced in (False, True):
        if running:
            for ref in running:
                with suppress(Exception):
                    ray.cancel(ref, force=is_forced)
            with suppress(Exception):
                running = ray.wait(running, num_returns=len(running), timeout=_CANCEL_SECONDS)[1]


_CONNECT_SECONDS = 10.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_address(address: str | None) -> None:
    """Check that Ray is installed, and that something answers at an address (None, `auto` and `local` are none).

    Raises:
        ConfigError: it is not installed, or this is no address.
        RunError: nothing answers.
    """
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray, which is not installed; pip install 'hbpack[ray]'")
    if address in (None, "auto", "local"):
        return
    host, colon, port = str(address).rpartition(":")
    if not (host and colon and port.isdigit() and "/" not in host):
        raise ConfigError(
            f"--engine ray:{address}: not the address of a Ray cluster; give HOST:PORT of its head (usually port "
            "6379), or auto for the one that this machine belongs to"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(str(address), error) from None


def start(address: str | None, workers: int | None) -> bool:
    """Join the Ray at an address, or start one on this machine, with this many CPUs; whether `stop` should undo that.

    A process that is in a Ray already stays there.

    Raises:
        RunError: it cannot be joined, or started.
    """
    is_own = address in (None, "local")
    if "ray" not in sys.modules:  # It reads these when it is imported.
        # Other users of this machine must not run code in it; a token of this run needs no file in the home folder.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if is_own else {}
        for name, value in {**_QUIET, **token}.items():
            os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"num_cpus": workers or default_workers(), "include_dashboard": False} if is_own else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:  # Of many kinds, most of them RuntimeError.
        raise _unreachable(address, error) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray's own would end the process before hbpack has cleaned up.
                signal.signal(number, handler)
    return True


def stop() -> None:
    """Leave the cluster, or end the Ray that was started."""
    import ray

    with suppress(Exception):
        ray.shutdown()


def num_cpus() -> int:
    """Count the CPUs of all nodes that are alive now, at least 1."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 0)))


def describe(address: str | None) -> str:
    """Describe where tasks run: which Ray, its nodes and CPUs."""
    import ray

    cpus = counted(num_cpus(), "CPU")
    if address in (None, "local"):
        return f"a Ray of this machine: {cpus}"
    nodes = sum(node["Alive"] for node in ray.nodes())
    return f"Ray at {ray.get_runtime_context().gcs_address}: {counted(nodes, 'node')}, {cpus}"


def _unreachable(address: str | None, error: BaseException) -> RunError:
    reason = _one_line(error).split(". ")[0]
    if address in (None, "local"):
        return RunError(f"Ray cannot be started ({reason}); try --engine local")
    return RunError(
        f"--engine ray:{address}: Ray does not answer ({reason}); check the address and that the cluster is up, or "
        "leave it out to use this machine"
    )


_POLL_SECONDS = 0.2
_worker: Worker | None = None


def relay(message: bytes, release: str, folder: str, preload: tuple[str, ...]) -> bytes | Died | _Lost:
    """Run a task: the worker's answer, or how it ended, or why its process could not be started.

    Args:
        message: from `to_bytes`.
        release: hbpack's, where the run was started.
        folder: the current folder there; relative paths mean it.

    Raises:
        RunError: this node has another release.
    """
    global _worker
    if release != __version__:
        raise RunError(
            f"a node of Ray has hbpack {__version__}, and this is {release}; install the same on every node"
        )
    if _worker is None:
        with suppress(OSError):  # Without such a folder here, only absolute paths are found.
            os.chdir(folder)
        vars(sys.modules["__main__"]).pop("__file__", None)  # Ray's own program, which a new process would import.
        try:
            _worker = Worker(process_context(preload))
        except (OSError, EOFError, RunError) as error:
            end_servers()  # One that is ending refuses for as long as it is not yet gone; the next try starts another.
            return _Lost(str(error) or type(error).__name__)
    worker, _worker = _worker, None
    try:
        worker.send(message)
        while not worker.connection.poll(_POLL_SECONDS):
            pass  # Where a canceled task is interrupted.
        answer = worker.receive()
    except BaseException:
        worker.kill()
        raise
    if not isinstance(answer, Died):
        _worker = worker
    return answer
