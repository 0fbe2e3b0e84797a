"""GroupData: which group's samples a piece belongs to (HBP, algorithm 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer_cli.plan.types import Group, Int16Array, Int32Array


def group_of(lengths: Int32Array, groups: Sequence[Group]) -> Int16Array:
    """Index of the group (int16[n]) with `previous capacity < length <= capacity`.

    Every length must be at most the last capacity. O(n log groups).

    >>> groups = (Group(capacity=4), Group(capacity=16, sp_size=2))
    >>> group_of(np.array([1, 4, 5, 16], dtype=np.int32), groups).tolist()
    [0, 0, 1, 1]
    """
    capacities = np.array([group.capacity for group in groups], dtype=np.int32)
    return np.searchsorted(capacities, lengths, side="left").astype(np.int16)
