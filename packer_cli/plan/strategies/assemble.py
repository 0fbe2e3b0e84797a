"""From packs and iterations to a plan: schedules each epoch, and numbers the packs.

Where replicas do not wait for each other in every micro-batch (`--lockstep 1`; DDP, ZeRO-1), only the end of a step
and a change of replicas bring all GPUs together, as in ByteScale (arXiv 2502.21231) and Megatron's dynamic context
parallelism. So the iterations of a step whose replicas are the same become one, in which each replica runs its packs
one after another. Their numbers are free: the packs of a group are dealt by time, longest first, each to the replica
with the least. A replica with nothing to do has one filler, and the others none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.cost import GroupCosts, segment_sums
from packer_cli.plan.core.csr import pack_tokens_and_work, plan_tokens_and_work, select_packs
from packer_cli.plan.core.iterations import Iterations, one_group_each, order_slots
from packer_cli.plan.core.schedule import schedule_epoch
from packer_cli.plan.core.segments import aligned_lengths, padded_lengths
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Packs, Pieces, Plan, Schedule
from packer_cli.plan.strategies.protocol import PlanRequest


def make_packs(offsets: Int64Array, pieces: Int32Array, group: NDArray[np.integer]) -> Packs:
    """Make packs of pieces (int64[p+1], int32[m]) for their groups (int[p]), in any order."""
    codes = np.zeros(len(group), dtype=np.int8)
    return Packs(offsets=offsets, pieces=pieces, group=group.astype(np.int16), cp_sharding=codes)


def packs_by_step(plan: Plan, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the chosen packs (int64[r]) by step of the first epoch, and the step of each (int64[r]), from 0 on."""
    step = plan.epochs[0].step_of_packs(len(plan.packs))[chosen]
    order = np.argsort(step, kind="stable")
    return chosen[order], np.unique(step[order], return_inverse=True)[1]


class PackSizes(NamedTuple):
    """Sizes of packs."""

    tokens: Int64Array
    """int64[p]"""
    aligned: Int64Array
    """int64[p]: tokens with the padding that aligns samples."""
    work: Int64Array
    """int64[p]: what the plan evens out, see `PlanRequest.evened`; the padding counts."""

    def seconds(self, group: NDArray[np.integer], request: PlanRequest) -> Float64Array:
        """Predict the seconds (float64[p]) of packs of these groups (int[p]), whose rates are known."""
        costs = GroupCosts.of(request.groups, request.rates)
        return costs.seconds(group, self.work - request.evened * self.aligned, self.aligned)


def pack_sizes(pieces: Pieces, packs: Packs, request: PlanRequest) -> PackSizes:
    """Measure packs for the groups of a request. O(m)."""
    lengths = aligned_lengths(pieces, packs, request.groups)
    aligned, work = pack_tokens_and_work(packs.offsets, packs.pieces, lengths, request.evened, pieces.work)
    if lengths is pieces.length:
        return PackSizes(aligned, aligned, work)
    return PackSizes(segment_sums(pieces.length[packs.pieces], packs.offsets), aligned, work)


def assemble(pieces: Pieces, packs: Packs, iterations: Iterations, sizes: PackSizes, request: PlanRequest) -> Plan:
    """Make the plan of packs and iterations: schedule each epoch, number the packs as the first epoch reads them."""
    schedules = [scheduled(iterations, sizes, packs.group, request, epoch) for epoch in range(request.epochs)]
    return numbered_plan(pieces, packs, schedules, request)


def assemble_padded(
    pieces: Pieces, batches: Packs, slots: Int32Array, request: PlanRequest, step: Int64Array | None = None
) -> Plan:
    """Make the plan of padded batches of the only group, each in rows of its own length.

    Args:
        slots: int32[iterations, dp_ranks], the batches of each iteration.
        step: int64[i], of each iteration; None: `StepRules` decide.
    """
    lengths = padded_lengths(batches.offsets, batches.pieces, pieces.length)
    padded = Pieces(samples=pieces.samples, start=pieces.start, length=lengths)
    sizes = pack_sizes(padded, batches, request)._replace(tokens=pack_sizes(pieces, batches, request).tokens)
    iterations = replace(one_group_each(request.groups, [slots], sizes.aligned), step=step)
    plan = replace(assemble(pieces, batches, iterations, sizes, request), is_padded=True)
    rows = np.append(plan_tokens_and_work(plan)[0], 0).astype(np.int32)  # FILLER is -1, the appended zero
    epochs = (replace(schedule, slot_row_length=rows[schedule.slot_pack]) for schedule in plan.epochs)
    return replace(plan, epochs=tuple(epochs))


def scheduled(
    iterations: Iterations, sizes: PackSizes, group: NDArray[np.integer], request: PlanRequest, epoch: int
) -> Schedule:
    """Schedule the iterations in an epoch, in which replicas wait for each other as `request.lockstep` says.

    Args:
        group: int[p], of each pack.
    """
    num_groups, linear = len(request.groups), request.evened
    schedule = schedule_epoch(iterations, sizes.tokens, sizes.work, num_groups, request.steps, request.seed, epoch)
    if request.lockstep != 1 or iterations.is_dealt:
        return schedule
    # The load that dealing evens out: seconds, or work where these are not known. Not attention work alone: there, one
    # long sample would weigh as much as many packs of short ones.
    times = sizes.work.astype(np.float64) if linear else None
    if request.rates is not None:
        times = sizes.seconds(group, request)
    return run_freely(schedule, num_groups, times, sizes.work if request.steps.longest_first else None)


def numbered_plan(
    pieces: Pieces, packs: Packs, schedules: Sequence[Schedule], request: PlanRequest, **others: Any
) -> Plan:
    """Make the plan of these epochs; number its packs as the first epoch reads them, one group after another. O(m).

    Args:
        schedules: of each epoch.
        others: fields of the plan that are not the request's.
    """
    used = schedules[0].slot_pack[schedules[0].slot_pack != FILLER]
    order = used[np.argsort(packs.group[used], kind="stable")]
    number = np.empty(len(order) + 1, dtype=np.int32)
    number[order] = np.arange(len(order))
    number[FILLER] = FILLER  # -1, the last one.
    in_order = make_packs(*select_packs(packs.offsets, packs.pieces, order), packs.group[order])
    names = ("groups", "num_gpus", "lockstep", "max_samples", "limits", "mask")
    of_request = {name: getattr(request, name) for name in names}
    epochs = tuple(replace(schedule, slot_pack=number[schedule.slot_pack]) for schedule in schedules)
    return Plan(pieces=pieces, packs=in_order, epochs=epochs, **{**of_request, **others})


def run_freely(
    schedule: Schedule, num_groups: int, times: Float64Array | None, falling: Int64Array | None = None
) -> Schedule:
    """Merge the iterations of each step that have the same replicas. O(k log k) for k slots.

    Args:
        schedule: one slot a replica and iteration; its replicas stand by falling group.
        times: float64[p], of each pack, see `scheduled`; None leaves every pack where it is.
        falling: int64[p], of each pack, by which a replica orders its own; None for the schedule's order.
    """
    merged, iteration_step = _merge(schedule, num_groups)
    iteration, first_gpu = merged[schedule.slot_iteration], schedule.slot_first_gpu.astype(np.int64)
    if times is not None:
        first_gpu = _dealt(schedule, iteration, np.append(times, 0)[schedule.slot_pack])
    own = np.zeros(len(iteration)) if falling is None else -np.append(falling, 0)[schedule.slot_pack]
    slots = order_slots(iteration, first_gpu, schedule.slot_pack, own)
    return Schedule(
        slot_iteration=iteration[slots],
        slot_pack=schedule.slot_pack[slots],
        slot_group=schedule.slot_group[slots],
        slot_first_gpu=first_gpu[slots].astype(np.int32),
        slot_row_length=schedule.slot_row_length[slots],
        iteration_step=iteration_step,
    )


def _merge(schedule: Schedule, num_groups: int) -> tuple[Int64Array, Int64Array]:
    """Merge iterations of equal layout in a step; return each one's merged one (int64[i]), and the steps of these."""
    counts = np.zeros((schedule.num_iterations, num_groups), dtype=np.int64)
    np.add.at(counts, (schedule.slot_iteration, schedule.slot_group), 1)
    of_step = np.concatenate([schedule.iteration_step[:, None], counts], axis=1)
    found, merged = np.unique(of_step, axis=0, return_inverse=True)
    return merged.ravel(), found[:, 0]


def _dealt(schedule: Schedule, iteration: Int64Array, times: Float64Array) -> Int64Array:
    """Deal the slots of each group again by time; return the first GPU (int64[k]) of each slot's replica.

    Args:
        iteration: int64[k], the merged iterations.
        times: float64[k]; 0 for fillers, so they come last and go to the replica with the least time.
    """
    order = np.lexsort((-times, schedule.slot_group, iteration))
    key = iteration[order] * (int(schedule.slot_group.max(initial=0)) + 1) + schedule.slot_group[order]
    begins = np.append(np.flatnonzero(np.diff(key, prepend=-1)), len(key))
    dealt = np.empty(len(order), dtype=np.int64)
    dealt[order] = _deal(begins, schedule.slot_first_gpu[order].astype(np.int64), times[order])
    return dealt


@njit(cache=True)
def _deal(begins: Int64Array, first_gpu: Int64Array, times: Float64Array) -> Int64Array:
    """Deal slots, run by run, to the replicas of the run; return the first GPU (int64[k]) of each.

    Args:
        begins: int64[r+1], where each run begins.
        first_gpu: int64[k], each replica of a run at least once.
        times: float64[k], falling in a run.
    """
    dealt = np.empty(len(first_gpu), dtype=np.int64)
    for run in range(len(begins) - 1):
        begin, end = begins[run], begins[run + 1]
        replicas = np.unique(first_gpu[begin:end])
        loads = np.zeros(len(replicas))
        counts = np.zeros(len(replicas), dtype=np.int64)
        for k in range(begin, end):
            least = 0
            for r in range(1, len(replicas)):
                if loads[r] < loads[least] or (loads[r] == loads[least] and counts[r] < counts[least]):
                    least = r
            loads[least] += times[k]
            counts[least] += 1
            dealt[k] = replicas[least]
    return dealt
