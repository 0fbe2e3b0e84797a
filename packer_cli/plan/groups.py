"""Assigns pieces to length groups (GroupData; HBP, algorithm 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.types import Group, Int32Array


def is_in_group(lengths: Int32Array, groups: Sequence[Group], g: int) -> NDArray[np.bool_]:
    """Whether each piece (bool[n]) belongs to group g: `previous capacity < length <= capacity`. O(n).

    >>> groups = (Group(capacity=4), Group(capacity=16, sp_size=2))
    >>> is_in_group(np.array([1, 4, 5, 16], dtype=np.int32), groups, 1).tolist()
    [False, False, True, True]
    """
    inside = lengths <= groups[g].capacity
    if g > 0:
        inside &= lengths > groups[g - 1].capacity
    return inside
