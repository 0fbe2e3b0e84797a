"""From the times of ranks in several rounds to the times of iterations; the profiles of several rounds as one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.profile import Profile
from packer_cli.measure.run import with_fits

Floats = NDArray[np.float64]


def slowest_seconds(times: Floats) -> Floats:
    """Seconds of each iteration in each round (float64 [r, i]): those of its slowest rank in the other rounds.

    The greatest of several noisy times is too long, the more so the more alike they are. Which rank is the slowest is
    therefore taken from the other rounds, and its time from this one, whose noise had no part in the choice.

    Args:
        times: float64 [r, i, ranks]; of one round only, the greatest.
    """
    if len(times) == 1:
        greatest: Floats = times.max(axis=2)
        return greatest
    others = (times.sum(axis=0) - times) / (len(times) - 1)
    slowest = others.argmax(axis=2)[..., None]
    return np.take_along_axis(times, slowest, axis=2)[..., 0]


NEIGHBOURS = 2
"""Probes on each side of the two around an iteration, with which their median is taken."""


def slowness_of(probes: Floats) -> Floats:
    """Seconds of a probe around each iteration (float64 [n]).

    Args:
        probes: float64 [n + 1], before and after each iteration.
    """
    padded = np.pad(probes, NEIGHBOURS, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 2)
    median: Floats = np.median(windows, axis=1)
    return median


def joint_profile(profiles: Sequence[Profile]) -> Profile:
    """The median of each row's time over profiles of the same settings, fitted again."""
    rows = []
    for of_row in zip(*(profile.iterations for profile in profiles), strict=True):
        seconds = [row.seconds for row in of_row if row.seconds is not None]
        rows.append(of_row[0].model_copy(update={"seconds": statistics.median(seconds) if seconds else None}))
    joint = profiles[0].model_copy(update={"iterations": tuple(rows)})
    return with_fits(joint, lambda note: None)
