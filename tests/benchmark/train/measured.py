"""The median of several rounds: of the times of ranks, and of the rows of their profiles.

What else a machine does disturbs both alike, within tenths of a second. The least of several rounds would be nearer to
what the work takes alone, but memory-bound work seldom reaches it, and an iteration ends with the rank that is
farthest from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.profile import Profile
from packer_cli.measure.run import with_fits

Floats = NDArray[np.float64]


def iteration_seconds(rounds: Floats) -> Floats:
    """Seconds of each iteration (float64[i]): of its slowest rank, each in its median round.

    Args:
        rounds: float64 [r, i, ranks].
    """
    seconds: Floats = np.median(rounds, axis=0).max(axis=1)
    return seconds


def joint_profile(profiles: Sequence[Profile]) -> Profile:
    """The median time of each row over profiles of the same settings, fitted again."""
    rows = []
    for of_row in zip(*(profile.iterations for profile in profiles), strict=True):
        times = [row.seconds for row in of_row if row.seconds is not None]
        rows.append(of_row[0].model_copy(update={"seconds": float(np.median(times)) if times else None}))
    joint = profiles[0].model_copy(update={"iterations": tuple(rows)})
    return with_fits(joint, lambda note: None)
