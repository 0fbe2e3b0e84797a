"""Wall time, CPU time and memory of a command with all its descendants; repeated timings of a function."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent
SAMPLE_SECONDS = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_REAP_SECONDS = 5.0

HOW_LONG = (
    "*Wall* is the time from the start of the command to its end. *CPU* is the user and system time of the command "
    "and all its descendants, as the kernel accounts for it (orphans are adopted and waited for)."
)
HOW = HOW_LONG + (
    " *Memory* is the largest proportional set size (PSS, which counts shared pages once) of all processes of the "
    f"tree together, read every {SAMPLE_SECONDS * 1000:.0f} ms."
)


class BenchmarkError(Exception):
    """A command of a benchmark failed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a command."""

    began: float
    """Unix time."""
    wall: float
    """Seconds, like all times here."""
    cpu: float
    peak_bytes: int
    """Greatest sum of PSS over the tree."""
    peak_own_bytes: int
    """The same without mapped files, whose pages the system takes back when it needs them."""
    peak_at: float
    """Seconds from the start to that."""
    busy_elsewhere: float
    """Share of the machine's cores that others used meanwhile: how far the run was disturbed."""
    lines: list[tuple[float, str]]
    """What it printed (both streams), each line with the seconds since the start."""


def run_measured(command: Sequence[str], env: Mapping[str, str] | None = None, *, watch_memory: bool = True) -> Run:
    """Run a command in the repository's root, and measure it. Raises BenchmarkError if it fails.

    Args:
        watch_memory: takes CPU time, a few ms per mapped GiB, and delays page faults meanwhile.
    """
    _adopt_orphans()
    machine, own, children = _machine_busy(), _own_cpu(), _children_cpu()
    began, start = time.time(), time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[tuple[float, str]] = []
    sampler = _MemorySampler(process.pid)
    if watch_memory:
        sampler.start()
    reader = threading.Thread(target=_read_lines, args=(process, start, lines), daemon=True)
    reader.start()
    code = process.wait()
    wall = time.perf_counter() - start
    if watch_memory:
        sampler.stop()
    _reap()
    reader.join(_REAP_SECONDS)
    cpu = _children_cpu() - children
    others = (_machine_busy() - machine) - cpu - (_own_cpu() - own)
    if code:
        text = "\n".join(line for _, line in lines[-20:])
        raise BenchmarkError(f"{' '.join(command)} ended with {code}:\n{text}")
    return Run(
        began=began,
        wall=wall,
        cpu=cpu,
        peak_bytes=sampler.peak,
        peak_own_bytes=sampler.peak_own,
        peak_at=sampler.peak_at,
        busy_elsewhere=max(0.0, others) / ((time.perf_counter() - start) * num_cores()),
        lines=lines,
    )


def repeat(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each function. A round calls each of them once, so that disturbances affect all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder; a file of several names counts once."""
    found = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum({each.st_ino: each.st_size for each in found}.values())


class _MemorySampler(threading.Thread):
    """Watches the memory of a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._start = time.perf_counter()
        self.peak = self.peak_own = 0
        self.peak_at = 0.0

    def run(self) -> None:
        while not self._done.is_set():
            now, own = self._tree_bytes()
            self.peak_own = max(self.peak_own, own)
            if now > self.peak:
                self.peak, self.peak_at = now, time.perf_counter() - self._start
            self._done.wait(SAMPLE_SECONDS)

    def stop(self) -> None:
        self._done.set()
        self.join()

    def _tree_bytes(self) -> tuple[int, int]:
        total = own = 0
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, OSError):
                    pss, files = _pss_and_files(process)
                    total += pss
                    own += pss - files
        return total, own


def _pss_and_files(process: psutil.Process) -> tuple[int, int]:
    """PSS of a process, and of it the bytes of mapped files, at one moment; RSS and 0 where there is no PSS."""
    path = Path(f"/proc/{process.pid}/smaps_rollup")
    if not path.exists():
        return process.memory_info().rss, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in path.read_text().splitlines()[1:]}
    return sizes.get("Pss", 0), sizes.get("Pss_File", 0)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, but with byte code caching, which is Python's default."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | dict(changes)


def _read_lines(process: subprocess.Popen[str], start: float, lines: list[tuple[float, str]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append((time.perf_counter() - start, line.rstrip()))


def _adopt_orphans() -> None:
    """Adopt descendants whose parent has ended, so that their CPU time can be read."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap() -> None:
    deadline = time.monotonic() + _REAP_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _machine_busy() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
