"""The most memory that a stretch of work has held."""

from __future__ import annotations

import sys
from collections.abc import Iterable


class PeakMemory:
    """What this process holds at most, above what it held when this was made.

    Linux tells what is held now and lets the peak be set back. Elsewhere only the highest peak of the process so far
    is known, and work that stays below an earlier peak seems to take nothing.
    """

    def __init__(self) -> None:
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            pass
        self._before = _status("VmRSS") or _highest()

    def num_bytes(self) -> int | None:
        """Bytes so far; None where the system does not tell."""
        now = _status("VmHWM") or _highest()
        return None if now is None or self._before is None else max(0, now - self._before)


def mapped_bytes() -> int | None:
    """What this process holds of files that it maps, which the system takes back when it needs memory."""
    return _status("RssFile")


def private_bytes(processes: Iterable[int]) -> int | None:
    """What these processes hold that they share with nobody and wrote themselves; None where the system does not tell.

    Args:
        processes: their ids.
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
