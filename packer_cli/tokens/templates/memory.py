"""The limit of memory for what templates do."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

MEMORY_BYTES = 4 << 30
"""About four times the text of the largest record."""


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process take no more memory than `MEMORY_BYTES` in addition; what needs more raises MemoryError.

    Price: 6 us, and 100 us once a second: the system adds up what the process has.
    """
    taken = _taken(int(time.monotonic()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = min(each for each in (taken + MEMORY_BYTES, soft, hard) if each >= 0)  # -1: unlimited
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@lru_cache(maxsize=1)
def _taken(_second: int, _peak: int) -> int:
    """Read the bytes that this process has: once a second, and whenever its peak grows."""
    with suppress(OSError):  # Linux alone has this file; elsewhere, the limit counts all that the process takes.
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    return 0
