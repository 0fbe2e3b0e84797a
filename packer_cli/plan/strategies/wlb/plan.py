"""From pieces to a plan: the arrival stream, packed step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer_cli.plan.core.csr import group_by_pack
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Delays, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.strategies.assemble import sizes_of_plan
from packer_cli.plan.strategies.group_packs import GroupPacks
from packer_cli.plan.strategies.numbering import number_as_used
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plan.strategies.wlb.arrival import arrive, in_batches
from packer_cli.plan.strategies.wlb.packers import StepOptions
from packer_cli.plan.strategies.wlb.schedule import MicroBatches, schedule_steps


def plan_steps(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces in the order in which a seeded stream brings them. Price: that of the packer, and O(m).

    Packs are the same in all epochs: the first runs the steps as they were packed, the others in another order.

    Args:
        request: the capacity of the one group is the context window; the plan's is what a micro-batch may hold.
    """
    (group,), packer, options = request.groups, request.algorithm, request.packing_options
    assert isinstance(options, StepOptions)
    most = _in_a_step(options, group)
    of_step = most * group.num_dp_ranks(request.num_gpus)
    pieces = arrive(pieces, (1 if packer.cuts_rows else of_step) * group.capacity, request.seed, group.align)
    arrivals = in_batches(pieces, of_step, group.capacity, linear=request.linear, seed=request.seed, align=group.align)
    packed = packer.pack(arrivals, options)
    offsets, members = group_by_pack(
        packed.row_of, as_ids(np.arange(len(pieces))), int(packed.row_of.max(initial=-1)) + 1
    )
    row = np.flatnonzero(np.diff(offsets))
    offsets = np.append(offsets[row], len(members))
    tokens, work = pack_tokens_and_work(offsets, members, arrivals.lengths, request.linear)
    micro_batches = MicroBatches(
        pack=np.arange(len(row)), step=row // of_step, times=work.astype(np.float64), tokens=tokens
    )
    group = replace(group, capacity=options.capacity(group.capacity))
    epochs = [
        schedule_steps(micro_batches, group, request.num_gpus, most, request.seed, epoch)
        for epoch in range(request.epochs)
    ]
    own = GroupPacks(offsets=offsets, pieces=members, num_whole=len(row), is_spread=False)
    packs, epochs = number_as_used([own], epochs)
    return Plan(
        groups=(group,),
        num_gpus=request.num_gpus,
        pieces=pieces,
        packs=packs,
        epochs=tuple(epochs),
        lockstep=1,
        delays=Delays(arrival=packed.arrival, thresholds=packed.thresholds, num_carried=packed.num_carried),
    )


def rest_of_steps(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """The steps of the plan's first epoch with the chosen packs alone (int64[r]), on other replicas. O(m)."""
    tokens, work = sizes_of_plan(plan, request)[1:]
    (group,), first = plan.groups, plan.epochs[0]
    step_of = np.empty(len(plan.packs) + 1, dtype=np.int64)
    step_of[first.slot_pack] = first.iteration_step[first.slot_iteration]
    packs = chosen[np.argsort(step_of[chosen], kind="stable")]
    _, step, sizes = np.unique(step_of[packs], return_inverse=True, return_counts=True)
    most = -(-int(sizes.max(initial=1)) // group.num_dp_ranks(request.num_gpus))
    of_packs = MicroBatches(pack=packs, step=step, times=work[packs].astype(np.float64), tokens=tokens[packs])
    return schedule_steps(of_packs, group, request.num_gpus, most, request.seed, epoch)


def _in_a_step(options: StepOptions, group: Group) -> int:
    """Micro-batches of a replica in a step: by default, as many as its pipeline has stages."""
    return options.micro_batches or group.pp_size
