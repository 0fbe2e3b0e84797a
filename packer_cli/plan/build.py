"""Builds a plan: its strategy decides, and then each pack's CP sharding is chosen.

The rest of a plan, when the number of GPUs changes, keeps the shards as they are, and so the samples of each pack.
Only the iterations change: which packs share one, and how many there are. `Strategy.rest` deals them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer_cli.errors import PlanError
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cp_sharding import choose_sharding
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.types import FILLER, Int64Array, Packs, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.strategies.protocol import PlanRequest


def build_plan(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces, each in exactly one pack. Price: that of the strategy. `check_plan` proves the result.

    Raises:
        RunError: a strategy of another package failed.
    """
    strategy = request.strategy
    with strategy.blamed():
        plan = strategy.plan(pieces, request)
        if not isinstance(plan, Plan):
            raise TypeError(f"its plan is a {type(plan).__name__}")
    return choose_sharding(plan, request.sharding)


def rest_of_epoch(schedule: Schedule, step: int, order: Int64Array | None = None) -> tuple[Int64Array, int]:
    """Return the packs that are left when `step` begins, and its first iteration. O(slots).

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
    packs = Packs(
        offsets=offsets,
        pieces=as_ids(np.arange(len(members))),
        group=plan.packs.group[chosen],
        cp_sharding=plan.packs.cp_sharding[chosen],
    )
    rest = replace(schedule, slot_pack=slot_pack)
    dealt = replace(plan, num_gpus=num_gpus, pieces=plan.pieces.take(members), packs=packs, epochs=(rest,))
    check_plan(dealt)
