"""Deals packs that are there to other GPUs, in iterations of one group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.schedule import GroupIterations, Iterations, deal, one_group_each
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import Int64Array, Plan, Schedule
from packer_cli.plan.kernels.balance import order_packs
from packer_cli.plan.strategies.assemble import scheduled, sizes_of_plan
from packer_cli.plan.strategies.protocol import PlanRequest


def rest_of_groups(
    plan: Plan, chosen: Int64Array, is_short: NDArray[np.bool_], request: PlanRequest, epoch: int
) -> Schedule:
    """Schedule the chosen packs in the fewest iterations, each of one group. O(m + p log p).

    Only a group's last iteration, that of its lightest packs, has fillers, and only if the packs do not fill it.
    Packs are sorted by work; samples are not exchanged, and a group's last packs are not spread.
    """
    sizes = sizes_of_plan(plan, request)
    iterations = _deal_groups(plan, chosen, is_short, sizes.aligned, sizes.work, request, epoch)
    return scheduled(iterations, sizes, plan.packs.group, request, epoch)


def _deal_groups(
    plan: Plan,
    chosen: Int64Array,
    is_short: NDArray[np.bool_],
    tokens: Int64Array,
    work: Int64Array,
    request: PlanRequest,
    epoch: int,
) -> Iterations:
    packs, by_group = plan.packs, []
    for g, group in enumerate(plan.groups):
        members = chosen[packs.group[chosen] == g]
        num_ranks = group.num_dp_ranks(request.num_gpus)
        order = order_packs(work[members], num_ranks, request.balance, rng_state(request.seed, Stream.DEAL, g, epoch))
        slots = deal(members[order], num_ranks)
        is_long = (~np.append(is_short, True)[slots]).any(axis=1)  # FILLER is -1, the appended one
        num_short = len(slots) - 1 - int(np.flatnonzero(is_long)[-1]) if is_long.any() else len(slots)
        by_group.append(GroupIterations(slots=slots, num_spread=num_short))
    return one_group_each(plan.groups, by_group, tokens)
