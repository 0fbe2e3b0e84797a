"""A whole data set: its steps, the layouts that they choose from, and the micro-batches of each.

For each step every layout is tried, from the one with the lowest bound on, until no bound is below the best time; the
paper tries all. Price: 1 to 50 ms a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import group_by_pack, pack_tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.iterations import Iterations, Slots
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Pieces, Plan, UInt64Array, as_ids
from packer_cli.plan.strategies.assemble import make_packs, numbered_plan
from packer_cli.plan.strategies.hydraulis.candidates import least_pipeline_seconds
from packer_cli.plan.strategies.hydraulis.layouts import SEARCH, StepPacker, kinds_of, make_batches, steps_to_try
from packer_cli.plan.strategies.hydraulis.stage1 import Step
from packer_cli.plan.strategies.hydraulis.stage2 import StepPlan, plan_step
from packer_cli.plan.strategies.protocol import PlanRequest


class PlannedSteps(NamedTuple):
    """The s steps of a data set of n samples."""

    layouts: Int64Array
    """int64[c, k]: pipelines of each scheme; each layout uses all GPUs."""
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
    lengths: Int32Array, costs: GroupCosts, num_gpus: int, batch_tokens: int, seed: int, packer: StepPacker = SEARCH
) -> PlannedSteps:
    """Plan all samples (int32[n], tokens).

    Args:
        batch_tokens: most tokens of a step; a longer sample is a step of its own.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    order, offsets = make_batches(lengths, batch_tokens, seed)
    falling = lengths[order].astype(np.int64)
    layouts = packer.find(steps_to_try(falling, offsets), falling, batch_tokens, costs, num_gpus)
    kinds = [kinds_of(counts, costs) for counts in layouts]
    pipeline_of, slot_of = np.empty((2, len(order)), dtype=np.int64)
    layout_of, seconds = np.empty(len(offsets) - 1, dtype=np.int64), np.empty(len(offsets) - 1)
    for j in range(len(offsets) - 1):
        part = slice(int(offsets[j]), int(offsets[j + 1]))
        state = rng_state(seed, Stream.BALANCE, j)
        layout_of[j], planned = _on_fastest(falling[part], kinds, costs, packer, state)
        pipeline_of[part], slot_of[part], seconds[j] = planned.pipeline_of, planned.slot_of, planned.seconds
    return PlannedSteps(layouts, order, offsets, layout_of, pipeline_of, slot_of, seconds)


def _on_fastest(
    lengths: Int64Array, layouts: Sequence[Int64Array], costs: GroupCosts, packer: StepPacker, state: UInt64Array
) -> tuple[int, StepPlan]:
    """Find the fastest of the layouts for the samples (int64[n], falling), and the plan of the step on this layout.

    Args:
        layouts: the schemes of each layout's pipelines, by falling capacity.
        state: of the shuffles, the same for every layout.
    """
    bounds = [_least_seconds(lengths, kinds, costs) for kinds in layouts]
    chosen, best = -1, None
    for c in sorted(range(len(layouts)), key=lambda c: bounds[c]):
        if best is not None and bounds[c] >= best.seconds:
            break
        found = plan_step(Step(lengths, layouts[c], costs.arrays), state.copy(), packer.pack)
        if best is None or found.seconds < best.seconds:
            chosen, best = c, found
    assert best is not None
    return chosen, best


def _least_seconds(lengths: Int64Array, kinds: Int64Array, costs: GroupCosts) -> float:
    """Bound seconds on the pipelines from below: busy with the cheapest samples, or the longest alone."""
    longest, own = int(lengths[0]), np.unique(kinds)[:, None]
    quadratic, linear, *_, gpus = costs.rates[:, own]
    fits = lengths <= costs.capacity[own]
    cheapest = np.where(fits, gpus * ((quadratic * lengths + linear) * lengths), np.inf).min(axis=0)
    alone = (
        least_pipeline_seconds(costs.arrays, kind, longest * longest, longest, longest, 1)
        for kind in own[fits[:, 0], 0].tolist()
    )
    total = np.cumsum(cheapest)[-1]  # One after another, which rounds alike on every machine.
    return float(max(min(alone, default=np.inf), total / costs.gpus[kinds].sum()))


def plan_pipelines(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces; the plan's groups are those of the request that it uses.

    A step is one iteration, in which each pipeline runs its micro-batches one after another. Later epochs run the same
    steps in another order. Price: see the module.
    """
    costs = GroupCosts.of(request.groups, request.rates)
    assert request.steps.global_tokens is not None
    found = plan_data_set(
        pieces.length,
        costs,
        request.num_gpus,
        request.steps.global_tokens,
        seed=request.seed,
        packer=request.algorithm,
    )
    kinds = [kinds_of(counts, costs) for counts in found.layouts]
    # Pipelines of all steps, numbered step by step.
    layout_of, steps = found.layout_of.tolist(), np.arange(len(found.layout_of))
    sizes = np.array([len(each) for each in kinds])[found.layout_of]
    pipeline_step = np.repeat(steps, sizes)
    pipeline_kind = np.concatenate([kinds[c] for c in layout_of])
    first_gpus = [_first_gpus(each, request.groups) for each in kinds]
    pipeline_gpu = np.concatenate([first_gpus[c] for c in layout_of])
    used, pipeline_group = np.unique(pipeline_kind, return_inverse=True)
    groups = tuple(request.groups[kind] for kind in used.tolist())
    # A pack is a micro-batch.
    step = np.repeat(steps, np.diff(found.offsets))
    key = np.stack([(np.cumsum(sizes) - sizes)[step] + found.pipeline_of, found.slot_of])
    (pipeline, _), pack_of = np.unique(key, axis=1, return_inverse=True)
    offsets, places = group_by_pack(pack_of.ravel(), as_ids(np.arange(len(step))), len(pipeline))
    packs = make_packs(offsets, found.order[places], pipeline_group[pipeline])
    tokens, work = pack_tokens_and_work(offsets, packs.pieces, pieces.length)
    idle = np.flatnonzero(np.bincount(pipeline, minlength=len(pipeline_kind)) == 0)
    none, of_slot = np.zeros(len(idle), dtype=np.int64), np.concatenate([pipeline, idle])
    slots = Slots(
        iteration=pipeline_step[of_slot],
        first_gpu=pipeline_gpu[of_slot],
        group=pipeline_group[of_slot],
        pack=np.concatenate([np.arange(len(packs)), none + FILLER]),
        tokens=np.concatenate([tokens, none]),
        load=np.concatenate([costs.seconds(pipeline_kind[pipeline], work, tokens), none]),
    )
    iterations = Iterations.of(slots, groups, request.num_gpus)
    orders = [shuffled(len(steps), rng_state(request.seed, Stream.ORDER, epoch)) for epoch in range(1, request.epochs)]
    schedules = [iterations.run(order, steps) for order in [as_ids(steps), *orders]]
    return numbered_plan(pieces, packs, schedules, request, groups=groups)


def _first_gpus(kinds: Int64Array, groups: Sequence[Group]) -> Int64Array:
    """Place pipelines on GPUs; return the first GPU of each (int64[p]).

    Pipelines whose rows are divided most come first. Their degrees of sp, cp and tp are powers of two, so each begins
    at a multiple of as many GPUs, and tensor parallelism stays inside a node.
    """
    of_row = np.array([groups[kind].layout.stage_gpus for kind in kinds.tolist()])
    gpus = np.array([groups[kind].num_gpus for kind in kinds.tolist()])
    order = np.lexsort((kinds, -gpus, -of_row))
    first = np.empty(len(kinds), dtype=np.int64)
    first[order] = np.cumsum(gpus[order]) - gpus[order]
    return first
