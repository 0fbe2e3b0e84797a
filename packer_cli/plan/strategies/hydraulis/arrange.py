"""From planned steps to a plan: packs by group, and each step an iteration of unlike pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import round_up_rows
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Int64Array, Packs, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts, scheme_costs
from packer_cli.plan.strategies.hydraulis.data_set import PlannedSteps, plan_data_set
from packer_cli.plan.strategies.hydraulis.layouts import kinds_of
from packer_cli.plan.strategies.protocol import PlanRequest


def plan_pipelines(pieces: Pieces, request: PlanRequest) -> Plan:
    """The plan of the pieces; its groups are those of the request that it uses.

    A step is one iteration, in which each pipeline runs its micro-batches one after another. Later epochs run the same
    steps in another order. Price: see `data_set`.
    """
    costs = scheme_costs(request)
    assert request.steps.global_tokens is not None
    found = plan_data_set(pieces.length, costs, request.num_gpus, request.steps.global_tokens, seed=request.seed)
    layouts = [_on_gpus(kinds_of(counts, costs), request.groups) for counts in found.layouts.counts]
    used = sorted({kind for c in set(found.layout_of.tolist()) for kind in kinds_of(found.layouts.counts[c], costs)})
    plan = _assembled(pieces, found, layouts, np.array(used), costs, request)
    schedule = plan.epochs[0]
    epochs = [schedule] + [_in_other_order(schedule, request.seed, epoch) for epoch in range(1, request.epochs)]
    return replace(plan, epochs=tuple(epochs))


def _on_gpus(kinds: Int64Array, groups: Sequence[Group]) -> tuple[Int64Array, Int64Array]:
    """`(pipelines in the order of their GPUs int64[p], first GPU of each pipeline int64[p])`.

    Pipelines whose rows are divided most come first. Their degrees of sp, cp and tp are powers of two, so each begins
    at a multiple of as many GPUs, and tensor parallelism stays inside a node.
    """
    of_row = np.array([groups[kind].layout.stage_gpus for kind in kinds.tolist()])
    gpus = np.array([groups[kind].num_gpus for kind in kinds.tolist()])
    order = np.lexsort((kinds, -gpus, -of_row))
    first = np.empty(len(kinds), dtype=np.int64)
    first[order] = np.cumsum(gpus[order]) - gpus[order]
    return order, first


def _assembled(
    pieces: Pieces,
    found: PlannedSteps,
    layouts: Sequence[tuple[Int64Array, Int64Array]],
    used: Int64Array,
    costs: SchemeCosts,
    request: PlanRequest,
) -> Plan:
    groups = tuple(request.groups[kind] for kind in used.tolist())
    kinds = [kinds_of(counts, costs) for counts in found.layouts.counts]
    num_steps = len(found.layout_of)
    # Pipelines of all steps, numbered step by step.
    sizes = np.array([len(each) for each in kinds])[found.layout_of]
    first_pipeline = np.concatenate([[0], np.cumsum(sizes)])
    pipeline_step = np.repeat(np.arange(num_steps), sizes)
    pipeline_kind = np.concatenate([kinds[c] for c in found.layout_of.tolist()])
    pipeline_gpu = np.concatenate([layouts[c][1] for c in found.layout_of.tolist()])
    pipeline_group = np.searchsorted(used, pipeline_kind)
    step = np.repeat(np.arange(num_steps), np.diff(found.offsets))
    pipeline = first_pipeline[step] + found.pipeline_of
    # A pack is a micro-batch; packs are numbered by group, and in a group as the first epoch reads them.
    by_pack = np.lexsort((found.slot_of, pipeline_gpu[pipeline], step, pipeline_group[pipeline]))
    begins = np.ones(len(by_pack), dtype=np.bool_)
    begins[1:] = (np.diff(pipeline[by_pack]) != 0) | (np.diff(found.slot_of[by_pack]) != 0)
    starts = np.flatnonzero(begins)
    offsets = np.append(starts, len(by_pack))
    pack_pieces = found.order[by_pack]
    pack_pipeline, pack_slot = pipeline[by_pack][starts], found.slot_of[by_pack][starts]
    tokens = np.add.reduceat(pieces.length[pack_pieces].astype(np.int64), starts)
    group = pipeline_group[pack_pipeline].astype(np.int16)
    packs = Packs(offsets=offsets, pieces=pack_pieces, group=group, cp_sharding=np.zeros(len(group), dtype=np.int8))
    idle = np.flatnonzero(np.bincount(pack_pipeline, minlength=len(pipeline_kind)) == 0)
    slot_pipeline = np.concatenate([pack_pipeline, idle])
    slot_pack = np.concatenate([np.arange(len(starts)), np.full(len(idle), FILLER)])
    order = np.lexsort(
        (np.append(pack_slot, np.zeros(len(idle))), pipeline_gpu[slot_pipeline], pipeline_step[slot_pipeline])
    )
    slot_pipeline, slot_pack = slot_pipeline[order], slot_pack[order]
    group = pipeline_group[slot_pipeline]
    schedule = Schedule(
        slot_iteration=pipeline_step[slot_pipeline],
        slot_pack=as_ids(slot_pack),
        slot_group=group.astype(np.int16),
        slot_first_gpu=pipeline_gpu[slot_pipeline].astype(np.int32),
        slot_row_length=round_up_rows(np.append(tokens, 0)[slot_pack], groups, group).astype(np.int32),
        iteration_step=np.arange(num_steps),
        step_window=np.zeros(num_steps, dtype=np.int32),
    )
    return Plan(
        groups=groups,
        num_gpus=request.num_gpus,
        pieces=pieces,
        packs=packs,
        epochs=(schedule,),
        lockstep=request.lockstep,
    )


def _in_other_order(schedule: Schedule, seed: int, epoch: int) -> Schedule:
    """The same steps, shuffled; each is one iteration."""
    order = shuffled(schedule.num_iterations, rng_state(seed, Stream.ORDER, epoch))
    first = np.searchsorted(schedule.slot_iteration, np.arange(schedule.num_iterations + 1))
    offsets, slots = select_packs(first, as_ids(np.arange(len(schedule.slot_pack))), order)
    return replace(
        schedule,
        slot_iteration=np.repeat(np.arange(len(order)), np.diff(offsets)),
        slot_pack=schedule.slot_pack[slots],
        slot_group=schedule.slot_group[slots],
        slot_first_gpu=schedule.slot_first_gpu[slots],
        slot_row_length=schedule.slot_row_length[slots],
    )
