"""The limit of memory for what templates do."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY_BYTES = 4 << 30
"""About four times the text of the largest record."""


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process take no more memory than `MEMORY_BYTES` in addition; what needs more raises MemoryError.

    Price: 30 us.
    """
    taken = 0
    with suppress(OSError):  # Linux alone has this file; elsewhere, the limit counts all that the process takes.
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = min(each for each in (taken + MEMORY_BYTES, soft, hard) if each >= 0)  # -1: unlimited
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
