"""The memory that this process may have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def available_memory(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return bytes of memory that this process may have: the machine's, or its control group's limit; None if unknown.

    Args:
        groups: where the control groups are mounted.
    """
    limits = []
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limits += filter(None, map(_limit, _limit_files(groups)))
    return min(limits, default=None)


def _limit_files(groups: Path) -> list[Path]:
    """List the files with the limits of this process's control group, and of those around it (versions 2 and 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = [groups / "memory.max", groups / "memory/memory.limit_in_bytes"]  # Those of a container.
    for line in lines:
        _, controllers, own = line.split(":", 2)
        root, name = groups, "memory.max"
        if controllers:
            root, name = groups / "memory", "memory.limit_in_bytes"
            if "memory" not in controllers.split(","):
                continue
        place = root / own.lstrip("/")
        files += [folder / name for folder in (place, *place.parents) if folder.is_relative_to(root)]
    return files


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # `max` is no limit.
        return None
