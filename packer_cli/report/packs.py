"""Some packs of a group, to draw: which samples share a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.types import Int64Array, Plan
from packer_cli.simulate.figures import group_name

_LEAST_SHARE = 1 / 48
"""Of a row: samples below are drawn together, class by class."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One sample in a row, or several short ones."""

    pack: int
    begin: int
    """Tokens from the start of the row."""
    stop: int
    length_class: int
    """Index of the class that holds its samples' lengths."""
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class DrawnPacks:
    """Packs of one group, evenly spread over the epoch."""

    name: str
    capacity: int
    num_gpus: int
    """Of a replica."""
    num_packs: int
    """Of the group."""
    packs: Int64Array
    """int64[n]: those that are drawn."""
    segments: tuple[Segment, ...]


def draw_packs(plan: Plan, group: int, classes: Sequence[int], most: int = 32) -> DrawnPacks | None:
    """Packs of a group, the longest samples of each first; None if the group has none. O(packs + drawn samples).

    Args:
        classes: rising bounds of the lengths, see `length_classes`.
    """
    own = np.flatnonzero(plan.packs.group == group)
    if not len(own):
        return None
    drawn = own[evenly(len(own), most)]
    segments = []
    for pack in drawn.tolist():
        segments += _segments(plan, pack, plan.groups[group].capacity, classes)
    return DrawnPacks(
        name=group_name(plan.groups[group]),
        capacity=plan.groups[group].capacity,
        num_gpus=plan.groups[group].num_gpus,
        num_packs=len(own),
        packs=drawn,
        segments=tuple(segments),
    )


def _segments(plan: Plan, pack: int, capacity: int, classes: Sequence[int]) -> list[Segment]:
    pieces = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
    lengths = np.sort(plan.pieces.length[pieces])[::-1]
    of_class = np.searchsorted(classes, lengths)
    is_small = lengths < capacity * _LEAST_SHARE
    # A large sample is a segment of its own; the small ones of a class are one together.
    begins = np.ones(len(lengths), dtype=np.bool_)
    begins[1:] = ~is_small[1:] | ~is_small[:-1] | (of_class[1:] != of_class[:-1])
    first = np.flatnonzero(begins)
    stop = np.append(0, np.cumsum(lengths))
    ends = np.append(first[1:], len(lengths))
    return [
        Segment(pack=pack, begin=int(stop[i]), stop=int(stop[j]), length_class=int(of_class[i]), num_samples=j - i)
        for i, j in zip(first.tolist(), ends.tolist(), strict=True)
    ]


def evenly(num: int, most: int) -> Int64Array:
    """At most `most` of the numbers below `num` (int64), evenly spread, the first and last among them.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.int64))
