"""Runs the command line, and kills it on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.engine.ray_workers import ray_workers

SECONDS = 120.0
"""A command that takes longer hangs."""


UNSHARE = ("unshare", "--map-root-user", "--mount")
"""Runs a program with mounts of its own."""


@dataclass(frozen=True)
class End:
    code: int
    num_operations: int
    seconds: float


class Commands:
    """A process of `tests.soak.killed`, which has the environment of this one."""

    def __init__(self, repo: Path, folder: Path, *, is_apart: bool = False) -> None:
        """Start it.

        Args:
            is_apart: mounts made there are seen there alone; needs user namespaces.
        """
        self.log = folder / "log"
        self._process = subprocess.Popen(
            [*(UNSHARE if is_apart else ()), sys.executable, "-m", "tests.soak.killed"],
            cwd=repo,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready\n"

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(SECONDS)

    def run(
        self,
        arguments: list[str],
        operation: int | None = None,
        *,
        is_before: bool = True,
        limits: dict[str, int] | None = None,
    ) -> End:
        """Run a command to its end, or up to a file operation of its main process.

        Args:
            limits: of resources: `FSIZE` in bytes; `NOFILE`, how many files more than now may be open.
        """
        pid, start = self._start(arguments, operation, is_before, limits)
        return self._end(pid, start)

    def shell(self, script: str) -> None:
        """Run a script where commands run, with their mounts."""
        enter = ["nsenter", f"--target={self._process.pid}", "--user", "--mount", "--preserve-credentials"]
        subprocess.run([*enter, "sh", "-ec", script], check=True)

    def run_killed(self, arguments: list[str], after: float, rng: random.Random, victims: str) -> End:
        """Run a command, and kill one of its processes after some seconds; which ones is `victims`.

        A worker may also be one of a Ray that this process has started.
        """
        pid, start = self._start(arguments, None, True, None)
        time.sleep(after)
        with suppress(psutil.Error, ProcessLookupError):
            workers = [each.pid for each in (*psutil.Process(pid).children(recursive=True), *ray_workers())]
            if victims == "group":
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(rng.choice(workers) if victims == "worker" and workers else pid, signal.SIGKILL)
        return self._end(pid, start)

    def _start(
        self, arguments: list[str], operation: int | None, is_before: bool, limits: dict[str, int] | None
    ) -> tuple[int, float]:
        assert self._process.stdin
        order = {
            "arguments": arguments,
            "log": str(self.log),
            "operation": operation,
            "is_before": is_before,
            "limits": limits or {},
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._line()), time.perf_counter()

    def _end(self, pid: int, start: float) -> End:
        code, num_operations = json.loads(self._line())
        end = End(code, num_operations, time.perf_counter() - start)
        assert end.seconds < SECONDS
        text = self.log.read_text()
        assert "Traceback" not in text, text
        wait_for_group(pid)
        return end

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def wait_for_group(pid: int) -> None:
    """Wait until the workers of a command have ended, too: they notice that it is gone."""
    end = time.monotonic() + 10
    while any(runs_in(pid, process) for process in psutil.process_iter()):
        assert time.monotonic() < end, "workers outlive their command"
        time.sleep(0.01)


def runs_in(group: int, process: psutil.Process) -> bool:
    """A zombie does not: a machine's first process may take seconds to collect those whose parents are gone."""
    with suppress(psutil.Error, ProcessLookupError):
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    return False
