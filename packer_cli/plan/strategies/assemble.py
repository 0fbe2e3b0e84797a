"""From packs by group and iterations to a plan: schedules each epoch, and numbers the packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.cost import GroupCosts, segment_sums
from packer_cli.plan.core.csr import copy_packs, pack_tokens_and_work
from packer_cli.plan.core.schedule import Iterations, schedule_epoch
from packer_cli.plan.core.segments import align_up, aligned_lengths
from packer_cli.plan.core.types import FILLER, Int32Array, Int64Array, Packs, Pieces, Plan, Schedule
from packer_cli.plan.strategies.free import pack_times, run_freely
from packer_cli.plan.strategies.protocol import PlanRequest


class PackSizes(NamedTuple):
    """What each pack holds, numbered through the groups."""

    tokens: Int64Array
    """int64[p]"""
    aligned: Int64Array
    """int64[p]: tokens with the padding that aligns samples."""
    work: Int64Array
    """int64[p]: what the plan evens out, see `PlanRequest.evened`; the padding counts."""


def pack_sizes(by_group: Sequence[GroupPacks], lengths: Int32Array, request: PlanRequest) -> PackSizes:
    """The sizes of all packs. O(m)."""
    of_groups = [
        pack_tokens_and_work(part.offsets, part.pieces, align_up(lengths, group.align), request.evened)
        for part, group in zip(by_group, request.groups, strict=True)
    ]
    aligned, work = (np.concatenate(parts) for parts in zip(*of_groups, strict=True))
    if all(group.align == 1 for group in request.groups):
        return PackSizes(aligned, aligned, work)
    tokens = [pack_tokens_and_work(part.offsets, part.pieces, lengths)[0] for part in by_group]
    return PackSizes(np.concatenate(tokens), aligned, work)


def sizes_of_plan(plan: Plan, request: PlanRequest) -> PackSizes:
    """The sizes of the packs of a plan. O(m)."""
    packs = plan.packs
    lengths = aligned_lengths(plan.pieces, packs, plan.groups)
    aligned, work = pack_tokens_and_work(packs.offsets, packs.pieces, lengths, request.evened)
    if lengths is plan.pieces.length:
        return PackSizes(aligned, aligned, work)
    return PackSizes(segment_sums(plan.pieces.length[packs.pieces], packs.offsets), aligned, work)


def assemble(
    pieces: Pieces,
    by_group: list[GroupPacks],
    iterations: Iterations,
    sizes: PackSizes,
    request: PlanRequest,
    costs: GroupCosts | None = None,
) -> Plan:
    """The plan of packs and iterations: schedules each epoch, and numbers the packs as the first one reads them.

    Args:
        by_group: emptied, so that no group's packs are held longer than needed.
        iterations: their slots number the packs through the groups.
        costs: of the groups, if known.
    """
    group = np.repeat(np.arange(len(by_group)), [len(part.offsets) - 1 for part in by_group])
    schedules = [scheduled(iterations, sizes, group, request, epoch, costs) for epoch in range(request.epochs)]
    packs, schedules = number_as_used(by_group, schedules)
    return Plan(
        groups=request.groups,
        num_gpus=request.num_gpus,
        pieces=pieces,
        packs=packs,
        epochs=tuple(schedules),
        lockstep=request.lockstep,
        max_samples=request.max_samples,
        mask=request.mask,
    )


def scheduled(
    iterations: Iterations,
    sizes: PackSizes,
    group: NDArray[np.integer],
    request: PlanRequest,
    epoch: int,
    costs: GroupCosts | None = None,
) -> Schedule:
    """An epoch of the iterations, in which replicas wait for each other as `request.lockstep` says.

    Args:
        group: int[p], of each pack.
        costs: of the groups, if known.
    """
    num_groups = len(request.groups)
    schedule = schedule_epoch(iterations, sizes.tokens, sizes.work, num_groups, request.steps, request.seed, epoch)
    if request.lockstep != 1 or iterations.is_dealt:
        return schedule
    times = pack_times(group, sizes.aligned, sizes.work, request.evened, costs)
    falling = sizes.work if request.steps.longest_first else None
    return run_freely(schedule, num_groups, times, falling)


@dataclass(frozen=True, kw_only=True)
class GroupPacks:
    """The packs of one group in the order of their iterations."""

    offsets: Int64Array
    """int64[p+1]"""
    pieces: Int32Array
    """int32[m]"""
    num_whole: int
    """Packs before this index form whole iterations; the others are the rest."""
    is_spread: bool
    """Whether the rest was spread over all ranks, in rows shorter than the capacity."""


def number_as_used(by_group: list[GroupPacks], schedules: Sequence[Schedule]) -> tuple[Packs, list[Schedule]]:
    """The packs of all groups, one group after another, and the schedules with their new numbers. O(m).

    Args:
        by_group: emptied, so that no group's packs are held longer than needed.
        schedules: of each epoch; their slots number the packs through the groups.
    """
    slot_pack = schedules[0].slot_pack
    sizes = [len(part.offsets) - 1 for part in by_group]
    group = np.repeat(np.arange(len(by_group), dtype=np.int16), sizes)
    used = slot_pack[slot_pack != FILLER]
    order = used[np.argsort(group[used], kind="stable")]
    offsets = np.zeros(len(group) + 1, dtype=np.int64)
    pieces = np.empty(sum(len(part.pieces) for part in by_group), dtype=np.int32)
    first = 0
    for size in sizes:
        part = by_group.pop(0)
        copy_packs(part.offsets, part.pieces, order[first : first + size] - first, offsets, pieces, first)
        first += size
    number = np.empty(len(group) + 1, dtype=np.int32)
    number[order] = np.arange(len(group))
    number[FILLER] = FILLER  # -1, the last one.
    packs = Packs(offsets=offsets, pieces=pieces, group=group, cp_sharding=np.zeros(len(group), dtype=np.int8))
    return packs, [replace(schedule, slot_pack=number[schedule.slot_pack]) for schedule in schedules]
