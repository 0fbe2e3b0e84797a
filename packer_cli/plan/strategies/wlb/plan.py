"""From pieces to a plan: the arrival stream, packed step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer_cli.plan.arrange import GroupPacks
from packer_cli.plan.core.csr import group_by_pack
from packer_cli.plan.core.types import Delays, Pieces, Plan, as_ids
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.numbering import number_as_used
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.strategies.wlb.arrival import arrive, in_batches
from packer_cli.plan.strategies.wlb.rules import WlbRules
from packer_cli.plan.strategies.wlb.schedule import MicroBatches, schedule_steps


def plan_steps(pieces: Pieces, rules: PlanRules, wlb: WlbRules) -> Plan:
    """Plan the pieces in the order in which a seeded stream brings them. Price: that of the packer, and O(m).

    Packs are the same in all epochs: the first runs the steps as they were packed, the others in another order.

    Args:
        rules: the capacity of the one group is the context window; the plan's is what a micro-batch may hold.
    """
    (group,) = rules.groups
    most = wlb.micro_batches(group)
    of_step = most * group.num_dp_ranks(rules.num_gpus)
    pieces = arrive(pieces, (1 if wlb.packer.cuts_rows else of_step) * group.capacity, rules.seed, group.align)
    arrivals = in_batches(pieces, of_step, group.capacity, linear=rules.linear, seed=rules.seed, align=group.align)
    packed = wlb.packer.pack(arrivals, wlb.options)
    offsets, members = group_by_pack(
        packed.row_of, as_ids(np.arange(len(pieces))), int(packed.row_of.max(initial=-1)) + 1
    )
    row = np.flatnonzero(np.diff(offsets))
    offsets = np.append(offsets[row], len(members))
    tokens, work = pack_tokens_and_work(offsets, members, arrivals.lengths, rules.linear)
    micro_batches = MicroBatches(
        pack=np.arange(len(row)), step=row // of_step, times=work.astype(np.float64), tokens=tokens
    )
    group = replace(group, capacity=wlb.capacity(group.capacity))
    epochs = [
        schedule_steps(micro_batches, group, rules.num_gpus, most, rules.seed, epoch) for epoch in range(rules.epochs)
    ]
    own = GroupPacks(offsets=offsets, pieces=members, num_whole=len(row), is_spread=False)
    packs, epochs = number_as_used([own], epochs)
    return Plan(
        groups=(group,),
        num_gpus=rules.num_gpus,
        pieces=pieces,
        packs=packs,
        epochs=tuple(epochs),
        lockstep=1,
        delays=Delays(arrival=packed.arrival, thresholds=packed.thresholds, num_carried=packed.num_carried),
    )
