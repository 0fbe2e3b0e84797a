"""Peak memory of part of a process's work."""

from __future__ import annotations

import sys
from collections.abc import Iterable


class PeakMemory:
    """The peak memory of this process, above the memory at the object's creation.

    Linux reports the current memory and can reset the peak. Elsewhere only the highest peak so far is known, so work
    that stays below an earlier peak seems to take nothing.
    """

    def __init__(self) -> None:
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            pass
        self._before = _status("VmRSS") or _highest()

    def num_bytes(self) -> int | None:
        """Bytes so far; None if the system does not report them."""
        now = _status("VmHWM") or _highest()
        return None if now is None or self._before is None else max(0, now - self._before)


def mapped_bytes() -> int | None:
    """Bytes that this process holds of mapped files, which the system can reclaim; None if not reported."""
    return _status("RssFile")


def private_bytes(processes: Iterable[int]) -> int | None:
    """Bytes that these processes wrote and share with no other process; None if the system does not report them.

    Args:
        processes: process ids.
    """
    held = [_field(f"/proc/{number}/smaps_rollup", "Private_Dirty") for number in processes]
    known = [num_bytes for num_bytes in held if num_bytes is not None]
    return sum(known) if len(known) == len(held) else None


def _status(name: str) -> int | None:
    return _field("/proc/self/status", name)


def _field(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), None)
    except OSError:
        return None


def _highest() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
