"""A whole data set: its steps, the layouts that they choose from, and the micro-batches of each.

For each step every layout is tried, from the one with the lowest bound on, until no bound is below the best time; the
paper tries all. A pipeline that decides a step, has few samples and could still be faster is solved by integer
program, limited by nodes and not by a clock, so that equal inputs give equal plans. Price: 1 to 50 ms a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.strategies.hydraulis.costs import Float64Array, SchemeCosts
from packer_cli.plan.strategies.hydraulis.layouts import (
    MOST_LAYOUTS,
    ChosenLayouts,
    choose_layouts,
    kinds_of,
    length_table,
    sampled_steps,
)
from packer_cli.plan.strategies.hydraulis.stage1 import RESTARTS
from packer_cli.plan.strategies.hydraulis.step import StepPlan, least_step_seconds, plan_pipeline, plan_sorted

_ENOUGH = 1.001
"""Shuffled orders are dealt only for a step that takes more than this times its bound."""
_SOLVED_GAP = 1.01
"""A pipeline is solved by integer program if it takes more than this times its bound."""
_MOST_SOLVED = 16
_MOST_NODES = 500
"""Limits of the integer program: samples, and nodes of its search."""


class PlannedSteps(NamedTuple):
    """The s steps of a data set of n samples."""

    layouts: ChosenLayouts
    order: Int32Array
    """int32[n]: the samples, step by step."""
    offsets: Int64Array
    """int64[s+1]: step j trains the samples `order[offsets[j]:offsets[j+1]]`."""
    layout_of: Int64Array
    """int64[s]"""
    pipeline_of: Int64Array
    """int64[n], of `order`: pipeline of each sample, which are numbered as `kinds_of` its step's layout."""
    slot_of: Int64Array
    """int64[n], of `order`: micro-batch in the pipeline; none is empty."""
    seconds: Float64Array
    """float64[s]: of the slowest pipeline."""


def plan_data_set(
    lengths: Int32Array,
    costs: SchemeCosts,
    num_gpus: int,
    batch_tokens: int,
    *,
    seed: int = 0,
    most_layouts: int = MOST_LAYOUTS,
    restarts: int = RESTARTS,
) -> PlannedSteps:
    """Plan all samples (int32[n], tokens).

    Args:
        batch_tokens: most tokens of a step; a longer sample is a step of its own.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    order, offsets = make_batches(lengths, batch_tokens, seed)
    falling = lengths[order].astype(np.int64)
    layouts = layouts_of(falling, offsets, costs, num_gpus, batch_tokens, most_layouts)
    kinds = [kinds_of(counts, costs) for counts in layouts.counts]
    pipeline_of, slot_of = np.empty((2, len(order)), dtype=np.int64)
    layout_of, seconds = np.empty(len(offsets) - 1, dtype=np.int64), np.empty(len(offsets) - 1)
    for j in range(len(offsets) - 1):
        part = slice(int(offsets[j]), int(offsets[j + 1]))
        state = rng_state(seed, Stream.BALANCE, j)
        layout_of[j], planned = _plan_step(falling[part], kinds, costs, restarts, state)
        pipeline_of[part], slot_of[part], seconds[j] = planned.pipeline_of, planned.slot_of, planned.seconds
    return PlannedSteps(layouts, order, offsets, layout_of, pipeline_of, slot_of, seconds)


def layouts_of(
    falling: Int64Array,
    offsets: Int64Array,
    costs: SchemeCosts,
    num_gpus: int,
    batch_tokens: int,
    most: int = MOST_LAYOUTS,
) -> ChosenLayouts:
    """The layouts that steps with these samples choose from (int64[n], falling within each step).

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    steps = [falling[offsets[j] : offsets[j + 1]] for j in sampled_steps(offsets).tolist()]
    return choose_layouts(steps, length_table(falling, batch_tokens), costs, num_gpus, most=most)


def _plan_step(
    lengths: Int64Array, layouts: Sequence[Int64Array], costs: SchemeCosts, restarts: int, state: NDArray[np.uint64]
) -> tuple[int, StepPlan]:
    """The fastest of the layouts for the samples (int64[n], falling), and the plan of the step on it.

    Args:
        layouts: the schemes of each layout's pipelines, by falling capacity.
    """
    bounds = [float(_least_seconds(lengths, kinds, costs.gpus, *costs.arrays)) for kinds in layouts]
    chosen, best = -1, None
    for c in sorted(range(len(layouts)), key=lambda c: bounds[c]):
        if best is not None and bounds[c] >= best.seconds:
            break
        found = plan_sorted(lengths, layouts[c], costs, 0, state, bounds[c])
        if best is None or found.seconds < best.seconds:
            chosen, best = c, found
    assert best is not None
    if restarts and best.seconds > best.bound * _ENOUGH:
        found = plan_sorted(lengths, layouts[chosen], costs, restarts, state, bounds[chosen])
        if found.seconds < best.seconds:
            best = found
    return chosen, _solve_slowest(lengths, layouts[chosen], costs, best)


def _solve_slowest(lengths: Int64Array, kinds: Int64Array, costs: SchemeCosts, step: StepPlan) -> StepPlan:
    """The step with its slowest pipelines solved by integer program, where that may help."""
    times, slot_of = step.pipeline_seconds.copy(), step.slot_of.copy()
    while True:
        slow = int(np.argmax(times))
        own = np.flatnonzero(step.pipeline_of == slow)
        if (
            len(own) > _MOST_SOLVED
            or times[slow] <= _SOLVED_GAP * plan_pipeline(lengths[own], costs, kinds[slow]).bound
        ):
            return step._replace(slot_of=slot_of, pipeline_seconds=times, seconds=float(times[slow]))
        from packer_cli.plan.strategies.hydraulis.programs import solve_pipeline  # Loads PuLP.

        exact = solve_pipeline(lengths[own], costs, int(kinds[slow]), time_limit=np.inf, node_limit=_MOST_NODES)
        if exact.step.seconds >= times[slow]:
            return step._replace(slot_of=slot_of, pipeline_seconds=times, seconds=float(times[slow]))
        slot_of[own], times[slow] = exact.step.slot_of, exact.step.seconds


@njit(cache=True)
def _least_seconds(
    lengths: NDArray[np.int64],
    kinds: NDArray[np.int64],
    gpus: NDArray[np.int64],
    rates: NDArray[np.float64],
    capacity: NDArray[np.int64],
) -> float:
    """No plan on these pipelines (int64[p]) is faster: all busy with their cheapest samples, or the longest alone."""
    least = least_step_seconds(lengths, kinds, rates, capacity)
    total, available = 0.0, 0
    for p in range(len(kinds)):
        available += gpus[kinds[p]]
    for i in range(len(lengths)):
        cheapest, before = np.inf, -1
        for kind in kinds:
            if lengths[i] > capacity[kind]:
                break
            if kind != before:
                own = (rates[0, kind] * lengths[i] + rates[1, kind]) * lengths[i]
                cheapest = min(cheapest, gpus[kind] * own)
                before = kind
        total += cheapest
    return max(least, total / available)


def make_batches(lengths: Int32Array, batch_tokens: int, seed: int) -> tuple[Int32Array, Int64Array]:
    """`(order int32[n], offsets int64[b+1])`: batch j holds `order[offsets[j]:offsets[j+1]]`, longest samples first.

    Args:
        lengths: int32[n], tokens.
        batch_tokens: most tokens of a batch; a longer sample is a batch of its own.

    >>> order, offsets = make_batches(np.array([3, 3, 3, 9], dtype=np.int32), 6, seed=1)
    >>> [np.array([3, 3, 3, 9])[order[a:b]].tolist() for a, b in zip(offsets, offsets[1:])]
    [[3], [9], [3, 3]]
    """
    order = shuffled(len(lengths), rng_state(seed, Stream.ORDER))
    ends = np.cumsum(lengths[order], dtype=np.int64)
    offsets = [0]
    while offsets[-1] < len(order):
        before = int(ends[offsets[-1] - 1]) if offsets[-1] else 0
        offsets.append(max(offsets[-1] + 1, int(np.searchsorted(ends, before + batch_tokens, side="right"))))
    batch = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return order[np.lexsort((-lengths[order].astype(np.int64), batch))], np.array(offsets)
