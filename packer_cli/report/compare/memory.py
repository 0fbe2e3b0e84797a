"""The most memory that a stretch of work has held."""

from __future__ import annotations

import sys


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


def _status(name: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
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
