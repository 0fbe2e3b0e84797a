"""`python -m tests.soak.killed`: runs commands, each in a fork of this process, which has loaded what they need.

Reads orders as lines of JSON, see `tests.soak.commands`. Answers each with the process id of the command, and at its
end with (exit status, as `subprocess` has it; number of its file operations).
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Any

from packer_cli.signals import STOPS

OPERATIONS = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "open")
"""What changes files, of the module `os`; between two of them, a kill changes nothing."""
_UNCOUNTED = {name: getattr(os, name) for name in OPERATIONS}
PREPARED = (
    "packer_cli.tokens.preload",
    "packer_cli.commands.pack_corpus",
    "packer_cli.commands.append",
    "packer_cli.commands.export",
    "packer_cli.commands.rebalance",
    "packer_cli.export.binary",
    "packer_cli.cli.pack",
    "packer_cli.engine.ray",
    "fsspec",
)


def main() -> None:
    for name in PREPARED:
        __import__(name)
    _load_kernels()
    multiprocessing.util.spawnv_passfds = _fork_python
    print("ready", flush=True)
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _run(json.loads(line), writing)
        os.close(writing)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(reading) as counted:
            print(json.dumps([os.waitstatus_to_exitcode(status), int(counted.read() or 0)]), flush=True)


def _load_kernels() -> None:
    """Load what numba loads with the first kernel, and the kernels of a plan: more work than all else in a command."""
    from packer_cli.config import PlanConfig, validate
    from packer_cli.config.resolve import resolve
    from packer_cli.plan.warming import warm_up

    warm_up(resolve(validate(PlanConfig, {"groups": "1k:1,8k:4", "gpus": 8})).request)


def _run(order: dict[str, Any], result: int) -> None:
    os.setsid()
    log = os.open(order["log"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name, limit in order["limits"].items():
        if name == "NOFILE":
            limit += len(os.listdir("/proc/self/fd"))  # What this process has open is not the command's.
        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    counter = _Counter(order["operation"], is_before=order["is_before"])
    for name in OPERATIONS:
        setattr(os, name, counter.counting(getattr(os, name)))
    sys.argv = ["hbpack", *order["arguments"]]
    from packer_cli.cli.main import main

    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 70
    os.write(result, str(counter.number).encode())
    os._exit(code)


def _fork_python(path: str, arguments: list[str], kept: Iterable[int]) -> int:
    """`python ... -c CODE` in a fork, with these file descriptors alone; returns its process id.

    So starts the server from which a command's workers are forked, and need not import all again.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        for name, function in _UNCOUNTED.items():
            setattr(os, name, function)
        for number in STOPS:  # They are blocked.
            signal.signal(number, signal.SIG_DFL)
        for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *kept}:
            with suppress(OSError):  # The folder's own.
                os.close(descriptor)
        exec(arguments[-1], {})
    except SystemExit:
        pass  # Its clients have ended.
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class _Counter:
    """Counts operations, and kills the process at one of them."""

    def __init__(self, last: int | None, *, is_before: bool) -> None:
        self.number = 0
        self._last = last
        self._is_before = is_before
        self._lock = Lock()

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.number += 1
                is_last = self.number == self._last
            if is_last and self._is_before:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*arguments, **options)
            finally:
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted


if __name__ == "__main__":
    main()
    os._exit(0)  # To take down what was loaded takes a second.
