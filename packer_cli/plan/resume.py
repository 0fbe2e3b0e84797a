"""Deals packs that are already written to a different number of GPUs, for the rest of an epoch or for whole epochs.

The shards stay as they are, and so do the samples of each pack. Only the iterations change: which packs share one, and
how many there are. So packs are still sorted by work (`plan.kernels.balance`), but samples are not exchanged
(`plan.kernels.balance.refine`) and a group's last packs are not spread. Price: O(p log p) for p packs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import PlanError
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cost import segment_sums
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import GroupIterations, Iterations, StepRules, deal, one_group_each, schedule_epoch
from packer_cli.plan.core.segments import aligned_lengths
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import FILLER, Int64Array, Lockstep, Packs, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.free import pack_times, run_freely
from packer_cli.plan.kernels.balance import BalanceRule, order_packs
from packer_cli.plan.strategies.flexsp.arrange import deal_mixed
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.wlb.schedule import MicroBatches, schedule_steps


@dataclass(frozen=True, kw_only=True)
class DealRules:
    """How packs become iterations and steps."""

    num_gpus: int
    """Each group's SP degree divides it; where iterations mix degrees, the largest fits."""
    balance: BalanceRule
    """Its `refine` has no effect."""
    steps: StepRules
    seed: int
    linear: int = 0
    """Tokens, see `Cost.linear_tokens`."""
    lockstep: Lockstep = None
    """See `Plan.lockstep`."""
    replica_costs: DegreeCosts | None = None
    """Iterations mix the degrees of all groups, see `PlanRules`."""
    keeps_steps: bool = False
    """Packs that share a step stay together (WLB-LLM), so that `balance` and `steps` have no effect."""


def rest_of_epoch(schedule: Schedule, step: int, order: Int64Array | None = None) -> tuple[Int64Array, int]:
    """The packs that are left when `step` begins, and its first iteration. O(slots).

    Args:
        step: 0 to `schedule.num_steps`.
        order: int64[s], the steps of `schedule` in the order in which the epoch runs them; None: unchanged.

    Returns:
        `(packs int64[r], increasing; iteration)`.
    """
    position = np.arange(schedule.num_steps)
    if order is not None:
        position[order] = np.arange(schedule.num_steps)
    is_left = position[schedule.iteration_step] >= step
    packs = schedule.slot_pack[is_left[schedule.slot_iteration]]
    return np.sort(packs[packs != FILLER]), int((~is_left).sum())


def short_packs(schedule: Schedule, packs: Packs, groups: tuple[Group, ...]) -> NDArray[np.bool_]:
    """bool[p]: packs in rows below the capacity, over which a group's last packs were spread.

    Args:
        schedule: a schedule of all packs.
    """
    is_pack = schedule.slot_pack != FILLER
    pack = schedule.slot_pack[is_pack]
    capacity = np.array([group.capacity for group in groups], dtype=np.int64)
    is_short = np.zeros(len(packs), dtype=np.bool_)
    is_short[pack] = schedule.slot_row_length[is_pack] < capacity[packs.group[pack]]
    return is_short


def deal_epoch(plan: Plan, chosen: Int64Array, is_short: NDArray[np.bool_], rules: DealRules, epoch: int) -> Schedule:
    """Schedule the chosen packs on `rules.num_gpus` GPUs, in the fewest iterations, each of one group.

    Only a group's last iteration, that of its lightest packs, has fillers, and only if the packs do not fill it. Where
    degrees mix, iterations are formed again of packs of near-equal predicted time.

    Args:
        chosen: int64[r], pack numbers, each once.
        is_short: bool[p], see `short_packs`; iterations of only such packs keep short rows.
        epoch: number of the epoch, which decides the order.
    """
    packs = plan.packs
    lengths = aligned_lengths(plan.pieces, packs, plan.groups)
    aligned, work = pack_tokens_and_work(packs.offsets, packs.pieces, lengths, rules.linear)
    tokens = (
        aligned if lengths is plan.pieces.length else segment_sums(plan.pieces.length[packs.pieces], packs.offsets)
    )
    if rules.keeps_steps:
        return _deal_steps(plan, chosen, aligned, work, rules, epoch)
    if rules.replica_costs:
        iterations = deal_mixed(packs, chosen, lengths, rules.replica_costs, plan.groups, rules.num_gpus)
    else:
        iterations = _deal_groups(plan, chosen, is_short, aligned, work, rules, epoch)
    schedule = schedule_epoch(iterations, tokens, work, len(plan.groups), rules.steps, rules.seed, epoch)
    if rules.lockstep != 1:
        return schedule
    times = pack_times(packs.group, aligned, work, rules.linear, rules.replica_costs)
    return run_freely(schedule, len(plan.groups), times)


def _deal_steps(
    plan: Plan, chosen: Int64Array, tokens: Int64Array, work: Int64Array, rules: DealRules, epoch: int
) -> Schedule:
    """The steps of the plan's first epoch, without the packs that were run, on other replicas."""
    (group,), first = plan.groups, plan.epochs[0]
    step_of = np.empty(len(plan.packs) + 1, dtype=np.int64)
    step_of[first.slot_pack] = first.iteration_step[first.slot_iteration]
    packs = chosen[np.argsort(step_of[chosen], kind="stable")]
    _, step, sizes = np.unique(step_of[packs], return_inverse=True, return_counts=True)
    most = -(-int(sizes.max(initial=1)) // group.num_dp_ranks(rules.num_gpus))
    of_packs = MicroBatches(pack=packs, step=step, times=work[packs].astype(np.float64), tokens=tokens[packs])
    return schedule_steps(of_packs, group, rules.num_gpus, most, rules.seed, epoch)


def _deal_groups(
    plan: Plan,
    chosen: Int64Array,
    is_short: NDArray[np.bool_],
    tokens: Int64Array,
    work: Int64Array,
    rules: DealRules,
    epoch: int,
) -> Iterations:
    packs, by_group = plan.packs, []
    for g, group in enumerate(plan.groups):
        members = chosen[packs.group[chosen] == g]
        num_ranks = group.num_dp_ranks(rules.num_gpus)
        order = order_packs(work[members], num_ranks, rules.balance, rng_state(rules.seed, Stream.DEAL, g, epoch))
        slots = deal(members[order], num_ranks)
        is_long = (~np.append(is_short, True)[slots]).any(axis=1)  # FILLER is -1, the appended one
        num_short = len(slots) - 1 - int(np.flatnonzero(is_long)[-1]) if is_long.any() else len(slots)
        by_group.append(GroupIterations(slots=slots, num_spread=num_short))
    return one_group_each(plan.groups, by_group, tokens)


def check_rest(plan: Plan, schedule: Schedule, chosen: Int64Array, num_gpus: int) -> None:
    """Prove that a schedule runs exactly the chosen packs, each once. O(pieces + slots).

    Raises:
        PlanError: a pack that was not chosen is scheduled, or `check_plan` fails; it numbers packs as in `chosen`.
    """
    number = np.full(len(plan.packs) + 1, -2, dtype=np.int32)
    number[chosen] = np.arange(len(chosen))
    number[FILLER] = FILLER
    slot_pack = number[schedule.slot_pack]
    if (slot_pack == -2).any():
        pack = schedule.slot_pack[np.flatnonzero(slot_pack == -2)[0]]
        raise PlanError(f"pack {pack} is scheduled and was run before")
    offsets, members = select_packs(plan.packs.offsets, plan.packs.pieces, chosen)
    pieces = Pieces(
        samples=plan.pieces.sample[members], start=plan.pieces.start[members], length=plan.pieces.length[members]
    )
    packs = Packs(
        offsets=offsets,
        pieces=as_ids(np.arange(len(members))),
        group=plan.packs.group[chosen],
        cp_sharding=plan.packs.cp_sharding[chosen],
    )
    rest = replace(schedule, slot_pack=slot_pack)
    dealt = replace(plan, num_gpus=num_gpus, pieces=pieces, packs=packs, epochs=(rest,))
    check_plan(dealt)
