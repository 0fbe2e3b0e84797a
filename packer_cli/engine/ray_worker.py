"""Function that a worker process of Ray runs: it passes tasks on to a process that it starts, as `LocalEngine` does.

So a task crashes, is preloaded and caches just as on one machine, and a crash leaves Ray's own process to tell of it.
Tasks and results pass through as bytes: Ray's process imports none of the stages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from packer_cli.engine.processes import Died, Worker, process_context
from packer_cli.engine.sink import Written
from packer_cli.errors import RunError
from packer_cli.version import __version__

_POLL_SECONDS = 0.2
_worker: Worker | None = None


@dataclass(frozen=True)
class Synced:
    """A function whose files are on the disk when it returns: no other machine sees what this one has in memory."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> Any:
        """Run a task."""
        result = self.function(task)
        if isinstance(result, Written):
            result.sink.sync()
        return result


@dataclass(frozen=True)
class Unstarted:
    """A task whose process could not be started."""

    reason: str


def relay(message: bytes, release: str, folder: str, preload: tuple[str, ...]) -> bytes | Died | Unstarted:
    """Run a task: the worker's answer, or how it ended, or that it has not begun.

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
            return Unstarted(str(error) or type(error).__name__)
    worker, _worker = _worker, None
    try:
        worker.send_bytes(message)
        while not worker.connection.poll(_POLL_SECONDS):
            pass  # Where a canceled task is interrupted.
        answer = worker.receive_bytes()
    except BaseException:
        worker.kill()
        raise
    if not isinstance(answer, Died):
        _worker = worker
    return answer
