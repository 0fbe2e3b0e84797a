"""The processes of a Ray that this process started."""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil


def ray_workers() -> list[psutil.Process]:
    """Those that run tasks, and the processes that they start."""
    found = []
    for process in psutil.Process().children(recursive=True) if "ray" in sys.modules else ():
        with suppress(psutil.NoSuchProcess):  # It may end while they are listed.
            found += [process] if "ray::relay" in process.name() else []
    return found
