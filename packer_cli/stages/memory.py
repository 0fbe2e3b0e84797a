"""Refuses a plan that would exhaust the memory, before it takes any."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from packer_cli.errors import RunError
from packer_cli.plan.strategies.protocol import PlanRequest


def require_memory(num_samples: float, request: PlanRequest) -> None:
    """Raise RunError for more samples an epoch than this process can plan in the memory that it may have."""
    available = available_memory()
    needed = num_samples * request.strategy.bytes_a_sample(request)
    if available is not None and needed > available:
        raise RunError(
            f"planning {num_samples:,.0f} samples an epoch takes about {needed / 2**30:,.1f} GiB of memory, and this "
            f"process may have {available / 2**30:,.1f} GiB; give smaller weights (PATH@WEIGHT), divide the inputs "
            "among several sets, or plan on a machine with more memory"
        )


def available_memory(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of memory that this process may have: the machine's, or its control group's limit; None if unknown.

    Args:
        groups: where the control groups are mounted.
    """
    limits = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limits += filter(None, map(_limit, _limit_files(groups)))
    return min(limits, default=None)


def _limit_files(groups: Path) -> list[Path]:
    """The files with the limits of this process's control group, and of those around it (versions 2 and 1)."""
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
