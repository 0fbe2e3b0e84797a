"""The four imbalances that Hydraulis (arXiv 2412.07894) names, in our definitions; docs/metrics.md explains them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.types import FILLER, Int64Array, Plan, Schedule
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.layouts import layout_seconds, sampled_steps


class Imbalances(NamedTuple):
    """Of the first epoch of a plan."""

    sampling_within: float
    """Within an iteration: share of the tokens that run on a pipeline which holds longer micro-batches than another
    of the plan's that holds their sample."""
    sampling_between: float | None
    """Between iterations: time if all steps used the one best layout over the time if each has its best; measured on a
    few steps. None if no layout holds every sample."""
    packing_within: float
    """Within a pipeline: v max_j t_j / sum_j t_j over its v micro-batches, mean over pipelines."""
    packing_between: float
    """Between pipelines: slowest / mean, idle ones included, mean over iterations."""


def measure_imbalances(plan: Plan, costs: SchemeCosts) -> Imbalances:
    """Measure the plan's first epoch. Price: O(pieces + slots), and 32 steps planned on each layout.

    Args:
        costs: of the plan's groups.
    """
    schedule = plan.epochs[0]
    tokens, work = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
    seconds = np.append(costs.seconds(plan.packs.group.astype(np.int64), work, tokens), 0.0)[schedule.slot_pack]
    first = np.flatnonzero(schedule.begins_replica)
    number = np.diff(np.append(first, len(seconds)))
    total, greatest = np.add.reduceat(seconds, first), np.maximum.reduceat(seconds, first)
    is_busy = total > 0
    pipeline = total + costs.rates[3, schedule.slot_group[first]] * greatest
    begins = np.flatnonzero(np.diff(schedule.slot_iteration[first], prepend=-1))
    in_iteration = np.diff(np.append(begins, len(first)))
    slowest = np.maximum.reduceat(pipeline, begins)
    between = slowest * in_iteration / np.add.reduceat(pipeline, begins)
    return Imbalances(
        sampling_within=_oversized_share(plan, costs),
        sampling_between=_gain_of_layouts(plan, schedule, costs),
        packing_within=float((number * greatest / np.maximum(total, 1e-300))[is_busy].mean()),
        packing_between=float(between.mean()),
    )


def _oversized_share(plan: Plan, costs: SchemeCosts) -> float:
    capacities = np.unique(costs.capacity)
    length = plan.pieces.length[plan.packs.pieces]
    own = np.repeat(costs.capacity[plan.packs.group], np.diff(plan.packs.offsets))
    least = capacities[np.searchsorted(capacities, length)]
    return float(length[own > least].sum(dtype=np.int64) / length.sum(dtype=np.int64))


def _gain_of_layouts(plan: Plan, schedule: Schedule, costs: SchemeCosts) -> float | None:
    first = schedule.begins_replica
    counts = np.zeros((schedule.num_iterations, len(costs)), dtype=np.int64)
    np.add.at(counts, (schedule.slot_iteration[first], schedule.slot_group[first]), 1)
    layouts = np.unique(counts, axis=0)
    of_slot = np.append(np.diff(plan.packs.offsets), 0)[schedule.slot_pack]
    number = np.bincount(schedule.slot_iteration, weights=of_slot, minlength=schedule.num_iterations)
    chosen = sampled_steps(np.concatenate([[0], np.cumsum(number)]))
    steps = [_falling(plan, schedule, iteration) for iteration in chosen.tolist()]
    seconds: NDArray[np.float64] = np.array(
        [[layout_seconds(step, layout, costs) for step in steps] for layout in layouts]
    )
    of_one = float(seconds.sum(axis=1).min())
    return of_one / float(seconds.min(axis=0).sum()) if np.isfinite(of_one) else None


def _falling(plan: Plan, schedule: Schedule, iteration: int) -> Int64Array:
    """Lengths (int64[n], falling) of the samples of an iteration."""
    packs = schedule.slot_pack[schedule.slot_iteration == iteration]
    _, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs[packs != FILLER])
    return -np.sort(-plan.pieces.length[pieces].astype(np.int64))
