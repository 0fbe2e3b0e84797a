"""Figures of Hydraulis (arXiv 2412.07894) in `hbpack stats` and `hbpack groups`: imbalances, layouts to choose from.

The four imbalances are those that the paper names, in our definitions; docs/metrics.md explains them.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import pack_tokens_and_work, select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Plan, Schedule
from packer_cli.plan.strategies.hydraulis.candidates import longest_held
from packer_cli.plan.strategies.hydraulis.layouts import layout_seconds, sampled_steps, steps_to_try
from packer_cli.plan.strategies.hydraulis.plan import make_batches
from packer_cli.plan.strategies.predict import digits
from packer_cli.plan.strategies.protocol import LayoutChoice, LayoutRow, PlanRequest, SchemeRow


def measure_imbalances(plan: Plan, request: PlanRequest) -> dict[str, float | None]:
    """Measure the `PipelineImbalances` of the plan's first epoch. O(pieces + slots), and 32 steps on each layout."""
    schedule, costs = plan.epochs[0], GroupCosts.of(request.groups, request.rates)
    costs = costs.select([request.groups.index(group) for group in plan.groups])
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
    return {
        "sampling_within": _oversized_share(plan, costs),
        "sampling_between": _gain_of_layouts(plan, schedule, costs),
        "packing_within": float((number * greatest / np.maximum(total, 1e-300))[is_busy].mean()),
        "packing_between": float(between.mean()),
    }


def _oversized_share(plan: Plan, costs: GroupCosts) -> float:
    capacities = np.unique(costs.capacity)
    length = plan.pieces.length[plan.packs.pieces]
    own = np.repeat(costs.capacity[plan.packs.group], np.diff(plan.packs.offsets))
    least = capacities[np.searchsorted(capacities, length)]
    return float(length[own > least].sum(dtype=np.int64) / length.sum(dtype=np.int64))


def _gain_of_layouts(plan: Plan, schedule: Schedule, costs: GroupCosts) -> float | None:
    first = schedule.begins_replica
    counts = np.zeros((schedule.num_iterations, len(costs)), dtype=np.int64)
    np.add.at(counts, (schedule.slot_iteration[first], schedule.slot_group[first]), 1)
    layouts = np.unique(counts, axis=0)
    of_slot = np.append(np.diff(plan.packs.offsets), 0)[schedule.slot_pack]
    number = np.bincount(schedule.slot_iteration, weights=of_slot, minlength=schedule.num_iterations)
    chosen = sampled_steps(np.concatenate([[0], np.cumsum(number)]))
    steps = [_falling(plan, schedule, iteration) for iteration in chosen.tolist()]
    seconds: Float64Array = np.array([[layout_seconds(step, layout, costs) for step in steps] for layout in layouts])
    of_one = float(seconds.sum(axis=1).min())
    return of_one / float(seconds.min(axis=0).sum()) if np.isfinite(of_one) else None


def _falling(plan: Plan, schedule: Schedule, iteration: int) -> Int64Array:
    """Return the lengths (int64[n], falling) of the samples of an iteration."""
    packs = schedule.slot_pack[schedule.slot_iteration == iteration]
    _, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs[packs != FILLER])
    return -np.sort(-plan.pieces.length[pieces].astype(np.int64))


def choose_step_layouts(lengths: Int32Array, request: PlanRequest) -> LayoutChoice:
    """Choose the layouts for samples (int32[n]), as planning chooses them. Price: see `hydraulis.layouts`.

    Args:
        request: of a strategy that finds layouts.
    """
    costs, global_tokens = GroupCosts.of(request.groups, request.rates), request.steps.global_tokens
    assert global_tokens is not None
    order, offsets = make_batches(lengths, global_tokens, request.seed)
    falling, packer = lengths[order].astype(np.int64), request.algorithm
    steps = steps_to_try(falling, offsets)
    layouts = packer.find(steps, falling, global_tokens, costs, request.num_gpus)
    tried = np.array(
        [[layout_seconds(step, counts, costs, packer.restarts, packer.pack) for step in steps] for counts in layouts]
    )
    used = np.flatnonzero(layouts.sum(axis=0)).tolist()
    fastest = np.bincount(tried.argmin(axis=0), minlength=len(layouts)) / len(steps)
    names = {kind: pipeline_name(request.groups[kind]) for kind in used}
    return LayoutChoice(
        schemes=tuple(
            SchemeRow(
                name=names[kind],
                layout=request.groups[kind].layout._asdict(),
                num_gpus=int(costs.gpus[kind]),
                capacity=int(costs.capacity[kind]),
                checkpoint_layers=request.groups[kind].checkpoint_layers,
                gpu_seconds_short=_gpu_seconds(costs, kind, min(1024, int(costs.capacity[kind]))),
                gpu_seconds_long=_gpu_seconds(costs, kind, int(costs.capacity[kind])),
            )
            for kind in used
        ),
        layouts=tuple(
            LayoutRow(
                pipelines={names[kind]: int(counts[kind]) for kind in reversed(used) if counts[kind]},
                longest=int(longest),
                fastest=float(share),
                step_seconds=digits(float(seconds.mean())) if np.isfinite(seconds).all() else None,
            )
            for counts, longest, share, seconds in zip(
                layouts, longest_held(layouts, costs), fastest, tried, strict=True
            )
        ),
        step_seconds=digits(float(tried.min(axis=0).mean())),
        num_steps=len(offsets) - 1,
        num_tried=len(steps),
        num_gpus=request.num_gpus,
        global_tokens=global_tokens,
    )


def pipeline_name(group: Group) -> str:
    """Name a pipeline by its degrees above 1 and its capacity.

    >>> pipeline_name(Group(capacity=17280, tp_size=2, pp_size=4))
    'tp2-pp4:17280'
    """
    degrees = [f"{name}{size}" for name, size in group.layout._asdict().items() if size > 1]
    return f"{'-'.join(degrees) or '1gpu'}:{group.capacity}"


def _gpu_seconds(costs: GroupCosts, kind: int, length: int) -> float:
    """Predict the GPU-seconds of a million tokens in samples of one length, in full micro-batches."""
    number = max(1, int(costs.capacity[kind]) // length)
    seconds = float(costs.seconds(kind, number * length * length, number * length))
    return digits(seconds * float(costs.gpus[kind]) / (number * length) * 1e6)
