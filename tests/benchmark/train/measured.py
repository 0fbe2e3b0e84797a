"""The median of several runs: of the times of ranks, and of the rows of their profiles.

What else a machine does disturbs both alike, within tenths of a second. The least of several runs would be nearer to
what the work takes alone, but memory-bound work seldom reaches it, and an iteration ends with the rank that is
farthest from it.

After the first rounds, only ranks that may be an iteration's slowest run again, and the iterations whose error weighs
most run most often.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.measure.kernels import split_evenly
from packer_cli.measure.run import with_fits

Floats = NDArray[np.float64]

TARGET = 0.05
"""Greatest error of a prediction."""
NEAR_SLOWEST = 0.75
"""A rank whose median is below this part of the greatest one of its iteration does not run again."""
MOST_RUNS = 6
"""Runs a round of the iteration whose error weighs most against what a run of it takes."""


def rank_seconds(runs: Floats) -> Floats:
    """Median seconds of each rank in each iteration (float64 [i, ranks]).

    Args:
        runs: float64 [r, i, ranks]; NaN where a rank did not run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Of no rank at all.
        seconds: Floats = np.nanmedian(runs, axis=0)
    return seconds


def iteration_seconds(runs: Floats) -> Floats:
    """Seconds of each iteration (float64[i]): of its slowest rank, each in its median run; see `rank_seconds`."""
    seconds: Floats = rank_seconds(runs).max(axis=1)
    return seconds


def all_ranks(num_iterations: int, num_gpus: int) -> list[dict[str, Any]]:
    """The turns of a set's iterations in which every rank runs once."""
    return [{"ranks": list(range(num_gpus)), "runs": 1} for _ in range(num_iterations)]


def turns_to_come(sets: Mapping[str, Floats], num_processes: int) -> dict[str, list[dict[str, Any]]]:
    """The turns of each set's iterations in the next round: which ranks run, and how often.

    An iteration whose slowest rank takes t, and whose ranks to run take c together, runs in proportion to t / sqrt(c)
    (Neyman's allocation, for errors in proportion to t), but at least once.

    Args:
        sets: runs of each set so far, as `rank_seconds` takes them.
        num_processes: that run at the same time, and may share a row: their ranks run together or not at all.
    """
    medians = {name: rank_seconds(runs) for name, runs in sets.items()}
    may = {name: _may_be_slowest(of_set, num_processes) for name, of_set in medians.items()}
    weights = {
        name: of_set.max(axis=1) / np.sqrt((of_set * may[name]).sum(axis=1)) for name, of_set in medians.items()
    }
    greatest = max(float(of_set.max()) for of_set in weights.values())
    return {
        name: [
            {"ranks": np.flatnonzero(ranks).tolist(), "runs": max(1, round(MOST_RUNS * weight / greatest))}
            for ranks, weight in zip(may[name], weights[name].tolist(), strict=True)
        ]
        for name in sets
    }


def _may_be_slowest(medians: Floats, num_processes: int) -> NDArray[np.bool_]:
    of_replicas = medians.reshape(len(medians), -1, num_processes).max(axis=2)
    may_be = of_replicas >= NEAR_SLOWEST * of_replicas.max(axis=1, keepdims=True)
    return np.repeat(may_be, num_processes, axis=1)


def rows_of(profile: Profile) -> list[dict[str, int]]:
    """What a worker needs to run the profile's rows, but for those without a time."""
    return [
        {"length": row.length, "sp_size": row.sp_size, "checkpoint_layers": row.checkpoint_layers,
         "num_samples": _num_samples(row)}
        for row in profile.iterations if row.seconds is not None
    ]  # fmt: skip


def _num_samples(row: IterationRow) -> int:
    return next(
        n for n in range(1, row.length + 1) if sum(size**2 for size in split_evenly(row.length, n)) == row.work
    )


def timed_again(profile: Profile, processes: Sequence[Floats]) -> Profile:
    """The profile with the times of other runs of its rows, fitted again.

    Args:
        processes: of each process float64 [r, rows], for the rows of `rows_of`. A row takes the mean of their medians,
            see `Device.of_processes`.
    """
    seconds = iter(np.mean([np.median(runs, axis=0) for runs in processes], axis=0).tolist())
    rows = [
        row if row.seconds is None else row.model_copy(update={"seconds": next(seconds)}) for row in profile.iterations
    ]
    return with_fits(profile.model_copy(update={"iterations": tuple(rows)}), lambda note: None)


def with_bandwidth(profile: Profile, moved: float, processes: Sequence[Floats]) -> Profile:
    """The profile with the bandwidth at which CP ranks exchange keys and values, as a user would measure it.

    Args:
        moved: bytes that a rank sends in an exchange.
        processes: of each process the seconds of exchanges, float64 [r, 1]. One takes the mean of their medians.
    """
    seconds = float(np.mean([np.median(runs) for runs in processes]))
    return profile.model_copy(update={"assumed": {**profile.assumed, "bandwidth": moved / seconds}})
