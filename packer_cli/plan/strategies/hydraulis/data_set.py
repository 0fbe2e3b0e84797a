"""A whole data set: its steps, the layouts that they choose from, and the micro-batches of each.

For each step every layout is tried, from the one with the lowest bound on, until no bound is below the best time; the
paper tries all. A pipeline that decides a step, has few samples and could still be faster is solved by integer
program, limited by nodes and not by a clock, so that equal inputs give equal plans. Price: 1 to 5 ms a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.strategies.flexsp.dealing import copy_to
from packer_cli.plan.strategies.hydraulis.batches import make_batches
from packer_cli.plan.strategies.hydraulis.candidates import length_table
from packer_cli.plan.strategies.hydraulis.costs import Float64Array, SchemeCosts
from packer_cli.plan.strategies.hydraulis.layouts import (
    MOST_LAYOUTS,
    SAMPLE_STEPS,
    ChosenLayouts,
    choose_layouts,
    kinds_of,
)
from packer_cli.plan.strategies.hydraulis.stage1 import RESTARTS
from packer_cli.plan.strategies.hydraulis.step import least_step_seconds, plan_falling, step_seconds
from packer_cli.plan.streams import Stream, rng_state
from packer_cli.plan.types import Int32Array, Int64Array

_SOLVED_GAP = 1.01
"""A pipeline is solved by integer program if it takes more than this times its bound."""
_MOST_SOLVED = 16
_MOST_NODES = 500
"""Limits of the integer program: samples, and nodes of its search."""


class PlannedSteps(NamedTuple):
    """The s steps of a data set of n samples."""

    layouts: ChosenLayouts
    order: Int64Array
    """int64[n]: the samples, step by step."""
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
        ValueError: no layout uses all GPUs and holds the longest sample.
    """
    order, offsets = make_batches(lengths, batch_tokens, seed)
    # Falling within each step.
    step = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = order[np.lexsort((-lengths[order].astype(np.int64), step))]
    falling = lengths[order].astype(np.int64)
    layouts = layouts_of(falling, offsets, costs, num_gpus, batch_tokens, most_layouts)
    of_layouts = [kinds_of(counts, costs) for counts in layouts.counts]
    kinds = np.concatenate(of_layouts)
    ends = np.cumsum([0, *map(len, of_layouts)])
    pipeline_of, slot_of = np.empty((2, len(order)), dtype=np.int64)
    layout_of, seconds = np.empty(len(offsets) - 1, dtype=np.int64), np.empty(len(offsets) - 1)
    for j in range(len(offsets) - 1):
        part = slice(int(offsets[j]), int(offsets[j + 1]))
        state = rng_state(seed, Stream.BALANCE, j)
        of_step = falling[part], kinds, ends, costs.gpus, *costs.arrays, restarts, state
        layout_of[j], seconds[j] = _plan_step(*of_step, pipeline_of[part], slot_of[part])
        own = of_layouts[layout_of[j]]
        seconds[j] = _solve_slowest(falling[part], own, costs, pipeline_of[part], slot_of[part])
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
        ValueError: no layout uses all GPUs and holds the longest sample.
    """
    num_steps = len(offsets) - 1
    sampled = np.unique(np.linspace(0, num_steps - 1, min(num_steps, SAMPLE_STEPS)).astype(np.int64))
    steps = [falling[offsets[j] : offsets[j + 1]] for j in sampled.tolist()]
    return choose_layouts(steps, length_table(falling, batch_tokens), costs, num_gpus, most=most)


def _solve_slowest(
    lengths: Int64Array, kinds: Int64Array, costs: SchemeCosts, pipeline_of: Int64Array, slot_of: Int64Array
) -> float:
    """Solve the slowest pipelines by integer program, where that may help; writes `slot_of`, returns the seconds."""
    times, bounds = step_seconds(lengths, kinds, *costs.arrays, pipeline_of, slot_of)
    while True:
        slow = int(np.argmax(times))
        own = np.flatnonzero(pipeline_of == slow)
        if times[slow] <= bounds[slow] * _SOLVED_GAP or len(own) > _MOST_SOLVED:
            return float(times[slow])
        from packer_cli.plan.strategies.hydraulis.programs import solve_pipeline  # Loads PuLP.

        exact = solve_pipeline(lengths[own], costs, int(kinds[slow]), time_limit=np.inf, node_limit=_MOST_NODES)
        slot_of[own] = exact.step.slot_of
        times[slow] = bounds[slow] = exact.step.seconds


@njit(cache=True)
def _plan_step(
    lengths: NDArray[np.int64],
    kinds: NDArray[np.int64],
    ends: NDArray[np.int64],
    gpus: NDArray[np.int64],
    rates: NDArray[np.float64],
    capacity: NDArray[np.int64],
    restarts: int,
    state: NDArray[np.uint64],
    pipeline_of: NDArray[np.int64],
    slot_of: NDArray[np.int64],
) -> tuple[int, float]:
    """Write to the last two (int64[n]) for falling lengths; returns the fastest layout and its seconds.

    Args:
        kinds: int64[pipelines of all layouts]; layout c has `kinds[ends[c]:ends[c+1]]`, by falling capacity.
    """
    num_layouts = len(ends) - 1
    bounds = np.empty(num_layouts)
    for c in range(num_layouts):
        bounds[c] = _least_seconds(lengths, kinds[ends[c] : ends[c + 1]], gpus, rates, capacity)
    best_layout, best = 0, np.inf
    dealt, slots = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    times = np.empty(len(kinds))
    for c in np.argsort(bounds, kind="mergesort"):
        if bounds[c] >= best:
            break
        own = kinds[ends[c] : ends[c + 1]]
        seconds = plan_falling(lengths, own, rates, capacity, 0, state, dealt, slots, times[: len(own)])
        if seconds < best:
            best_layout, best = c, seconds
            copy_to(dealt, pipeline_of)
            copy_to(slots, slot_of)
    if restarts and best > bounds[best_layout] * 1.001:
        own = kinds[ends[best_layout] : ends[best_layout + 1]]
        seconds = plan_falling(lengths, own, rates, capacity, restarts, state, dealt, slots, times[: len(own)])
        if seconds < best:
            best = seconds
            copy_to(dealt, pipeline_of)
            copy_to(slots, slot_of)
    return best_layout, best


@njit(cache=True, no_cpython_wrapper=True)
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
