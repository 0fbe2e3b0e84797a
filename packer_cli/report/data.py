"""The numbers behind the charts: lengths, packs, work and series over the steps, thinned out for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import iteration_figures, slot_contents
from packer_cli.plan.core.types import Int32Array, Int64Array, Plan

_BLOCK = 1 << 20
_EDGES = np.unique(np.ceil(2.0 ** (np.arange(63) / 2)).astype(np.int64))
"""Two bins for each doubling."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Samples of k kinds in b bins; bin j holds lengths from `edges[j]` up to, and without, `edges[j + 1]`."""

    edges: Int64Array
    """int64[b+1]: tokens."""
    samples: Int64Array
    """int64[k, b]"""
    tokens: Int64Array
    """int64[k, b]"""


def histogram(lengths: Int32Array, kind: NDArray[np.integer] | None = None, num_kinds: int = 1) -> Histogram:
    """Count lengths by bin and kind. O(n), block by block.

    Args:
        lengths: int32[n], each at least 1.
        kind: int[n], of each, below `num_kinds`; None: all are of kind 0.
    """
    num_bins = len(_EDGES) - 1
    samples = np.zeros(num_kinds * num_bins, dtype=np.int64)
    tokens = np.zeros(num_kinds * num_bins, dtype=np.int64)
    for first in range(0, len(lengths), _BLOCK):
        block = lengths[first : first + _BLOCK]
        cell = np.searchsorted(_EDGES, block, side="right") - 1
        if kind is not None:
            cell += kind[first : first + _BLOCK].astype(np.int64) * num_bins
        samples += np.bincount(cell, minlength=len(samples))
        # Sums of integers below 2^53 are exact in floats.
        tokens += np.bincount(cell, weights=block, minlength=len(tokens)).astype(np.int64)
    shape = num_kinds, num_bins
    used = np.flatnonzero(samples.reshape(shape).any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Histogram(
        edges=_EDGES[first : stop + 1],
        samples=samples.reshape(shape)[:, first:stop],
        tokens=tokens.reshape(shape)[:, first:stop],
    )


def group_of_pieces(plan: Plan) -> NDArray[np.int16]:
    """Return the group (int16[m]) in whose packs each piece is. O(m)."""
    group = np.empty(len(plan.pieces), dtype=np.int16)
    group[plan.packs.pieces] = np.repeat(plan.packs.group, np.diff(plan.packs.offsets))
    return group


def length_classes(lengths: Int32Array, most: int = 6) -> tuple[int, ...]:
    """Return rising bounds, powers of two, of at most `most` classes of lengths; the last holds the longest.

    >>> length_classes(np.array([100, 300, 500, 100_000], dtype=np.int32))
    (512, 2048, 8192, 32768, 131072)
    """
    few = lengths[:: 1 + len(lengths) // _BLOCK]
    low = int(np.ceil(np.log2(max(1, int(np.percentile(few, 10))))))
    high = int(np.ceil(np.log2(max(1, int(lengths.max(initial=1))))))
    step = max(1, -(-(high - low) // (most - 1)))
    exponents = range(high, max(low - 1, high - step * most), -step)
    return tuple(2**exponent for exponent in reversed(exponents))


_LEAST_SHARE = 1 / 48
"""Share of a row: shorter samples are drawn together, class by class."""


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

    group: Group
    num_packs: int
    """Number of the group's packs."""
    packs: Int64Array
    """int64[n]: those that are drawn."""
    segments: tuple[Segment, ...]


def draw_packs(plan: Plan, group: int, classes: Sequence[int], most: int = 32) -> DrawnPacks | None:
    """Draw packs of a group, the longest samples of each first; None if the group has none.

    O(packs + drawn samples).

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
        group=plan.groups[group],
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
    """Return at most `most` of the numbers below `num` (int64), evenly spread, with the first and the last.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.int64))


_MOST_RANKS = 48


@dataclass(frozen=True, kw_only=True)
class WorkOfRanks:
    """n iterations, evenly spread over the epoch, with q points."""

    iterations: Int64Array
    """int64[n]: their numbers."""
    greatest: NDArray[np.float64]
    """float64[n]: of the slowest GPU, as a multiple of the mean."""
    least: NDArray[np.float64]
    """float64[n]: of the GPU with the least."""
    point_iteration: Int64Array
    """int64[q]: index of `iterations`."""
    point_work: NDArray[np.float64]
    """float64[q]: work per GPU of a replica, as a multiple of the mean of the iteration's GPUs."""


def work_of_ranks(plan: Plan, most: int = 24) -> WorkOfRanks:
    """Measure attention work per GPU of the replicas of some iterations. Price: O(pieces + slots).

    Of many replicas, some are drawn, in the order of their work; those with the most and the least are among them.
    """
    slots = slot_contents(plan)
    iteration, gpus = slots.replicas
    work = slots.of_replicas(slots.work)
    first = np.searchsorted(iteration, np.arange(plan.epochs[0].num_iterations + 1))
    mean = np.add.reduceat(work, first[:-1]) / np.add.reduceat(gpus, first[:-1])
    chosen = np.flatnonzero(mean > 0)
    chosen = chosen[evenly(len(chosen), most)]
    drawn = []
    for number in chosen.tolist():
        own = slice(int(first[number]), int(first[number + 1]))
        rising = np.sort(work[own] / gpus[own] / mean[number])
        drawn.append(rising[evenly(len(rising), _MOST_RANKS)])
    return WorkOfRanks(
        iterations=chosen,
        greatest=np.array([points[-1] for points in drawn]),
        least=np.array([points[0] for points in drawn]),
        point_iteration=np.repeat(np.arange(len(drawn)), [len(points) for points in drawn]),
        point_work=np.concatenate(drawn),
    )


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """An epoch in b stretches of about equally many steps."""

    first_step: Int64Array
    """int64[b]"""
    num_iterations: Int64Array
    """int64[b]"""
    ratios: dict[str, NDArray[np.float64]]
    """ABR, CBR where it is known, DBR and PR (float64[b]): the means of each stretch's iterations, and for PR its
    padding over its token slots."""


def step_series(plan: Plan, linear: int = 0, most: int = 100) -> StepSeries:
    """Return the ratios over an epoch. Price: O(pieces + slots).

    Args:
        linear: tokens, see `plan.core.cost`; 0 leaves CBR out.
        most: stretches.
    """
    schedule, figures = plan.epochs[0], iteration_figures(plan, linear=linear)
    num_steps = schedule.num_steps
    num = min(most, num_steps)
    stretch = schedule.iteration_step * num // num_steps
    count = np.bincount(stretch, minlength=num)

    def sums(values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.bincount(stretch, weights=values, minlength=num).astype(np.float64, copy=False)

    ratios = {"ABR": sums(figures.abr) / count, "DBR": sums(figures.dbr) / count}
    if figures.cbr is not None:
        ratios["CBR"] = sums(figures.cbr) / count
    ratios["PR"] = 1 - sums(figures.tokens) / sums(figures.token_slots)
    first_step = -(-np.arange(num) * num_steps // num)
    return StepSeries(first_step=first_step, num_iterations=count, ratios=ratios)
