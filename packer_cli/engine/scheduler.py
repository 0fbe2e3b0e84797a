"""Task of a job array that a run is: named by the user, by Slurm or by Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from packer_cli.engine.array import ArrayIds
from packer_cli.errors import ConfigError
from packer_cli.sizes import parse_integer


def array_ids(shard: str | None, environment: Mapping[str, str] = os.environ) -> ArrayIds | None:
    """Find the task of a job array that this run is: from `--shard`, else from Slurm's or Kubernetes' variables.

    Returns None outside of a job array.

    Raises:
        ConfigError: `--shard` or a variable is wrong, or Slurm's ids are not evenly spaced.
    """
    if shard is not None:
        return _parse(shard)
    if environment.get("SLURM_ARRAY_TASK_ID"):
        return _slurm(environment)
    if environment.get("JOB_COMPLETION_INDEX"):
        return ArrayIds(id=_read(environment, "JOB_COMPLETION_INDEX"), num_tasks=None, source="JOB_COMPLETION_INDEX")
    return None


def _parse(text: str) -> ArrayIds:
    index, slash, num_tasks = str(text).partition("/")
    try:
        if slash and 0 <= parse_integer(index) < parse_integer(num_tasks):
            return ArrayIds(id=int(index), num_tasks=int(num_tasks))
    except ValueError:
        pass
    raise ConfigError(f"--shard {text}: must be I/N with 0 <= I < N, such as 0/4 for the first of four tasks")


def _slurm(environment: Mapping[str, str]) -> ArrayIds | None:
    """Read Slurm's variables: its ids begin at any number, and those of a rerun are of the tasks that run again."""
    source = "SLURM_ARRAY_TASK_ID"
    number = _read(environment, source)
    names = ("COUNT", "MIN", "MAX", "STEP")
    known = {
        name: _read(environment, f"SLURM_ARRAY_TASK_{name}")
        for name in names
        if environment.get(f"SLURM_ARRAY_TASK_{name}")
    }
    if "COUNT" not in known:
        return ArrayIds(id=number, num_tasks=None, source=source)
    count, first = known["COUNT"], known.get("MIN", 0)
    step = max(known.get("STEP", 1), 1) if count > 1 else 1
    is_even = known.get("MAX", first + (count - 1) * step) == first + (count - 1) * step
    # Whether uneven ids are a rerun of some tasks is known from the output alone.
    return ArrayIds(id=number, num_tasks=count if is_even else None, first=first, step=step, source=source)


def _read(environment: Mapping[str, str], name: str) -> int:
    try:
        return parse_integer(environment[name])
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
