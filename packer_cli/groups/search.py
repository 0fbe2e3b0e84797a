"""Finds the groups with the shortest predicted epoch, by dynamic programming over candidate lengths.

The predicted seconds of all samples up to a capacity are `(1 - f) C + g`, with C those up to the previous group (see
`groups.epoch`). f and g do not depend on the groups below, so the least C gives the least total. The best k groups
that end at a length therefore follow from the best k - 1 groups that end at each shorter one: the search is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.groups.epoch import EpochModel
from packer_cli.plan.core.groups import Group


@dataclass(frozen=True, kw_only=True)
class Found:
    """A set of groups and its predicted epoch."""

    groups: tuple[Group, ...]
    """By increasing capacity."""
    gpu_seconds: float
    """GPU-seconds of the epoch."""


def search_groups(model: EpochModel, settings: Mapping[int, Sequence[Group]], max_groups: int) -> list[Found]:
    """The best sets of exactly 1, 2, .. `max_groups` groups, or fewer if there are fewer lengths.

    Every group has samples of its own, since one without changes nothing. Ties go to the set with longer rows. Price:
    O(groups * candidates^2 * degrees) array elements.

    Args:
        settings: candidate length to its settings. The longest length holds the longest sample; lengths without
            settings are skipped.
    """
    lengths = np.array([0, *sorted(length for length in settings if settings[length])], dtype=np.int64)
    ranges = [model.range_of(lengths[:j], int(lengths[j])) for j in range(1, len(lengths))]
    steps = [
        [(range_.share, model.cost_of(range_, group), group) for group in settings[int(length)]]
        for length, range_ in zip(lengths[1:], ranges, strict=True)
    ]
    samples = model.sums.up_to(lengths)[0]
    # best[j]: least GPU-seconds of all samples up to lengths[j], with the current number of groups.
    best = np.where(np.arange(len(lengths)) == 0, 0.0, np.inf)
    back: list[list[tuple[int, Group] | None]] = []
    found = []
    for _ in range(min(max_groups, len(lengths) - 1)):
        following = np.full(len(lengths), np.inf)
        came: list[tuple[int, Group] | None] = [None] * len(lengths)
        for j in range(1, len(lengths)):
            for share, own, group in steps[j - 1]:
                is_open = np.isfinite(best[:j]) & (samples[:j] < samples[j])
                totals = np.where(is_open, (1 - share) * np.where(is_open, best[:j], 0.0) + own, np.inf)
                i = len(totals) - 1 - int(np.argmin(totals[::-1]))
                if totals[i] < following[j]:
                    following[j], came[j] = totals[i], (i, group)
        back.append(came)
        best = following
        ends = np.where(lengths >= model.sums.longest, best, np.inf)
        last = len(ends) - 1 - int(np.argmin(ends[::-1]))
        if np.isfinite(ends[last]):
            found.append(Found(groups=_trace(back, last), gpu_seconds=float(ends[last])))
    return found


def _trace(back: Sequence[Sequence[tuple[int, Group] | None]], last: int) -> tuple[Group, ...]:
    groups: list[Group] = []
    for came in reversed(back):
        step = came[last]
        assert step is not None
        last, group = step
        groups.append(group)
    return tuple(reversed(groups))
