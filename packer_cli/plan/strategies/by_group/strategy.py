"""What the strategies that plan group by group have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import PlanRequest, Strategy

if TYPE_CHECKING:
    from packer_cli.plan.core.types import BoolArray, Int64Array, Pieces, Plan, Schedule


class GroupStrategy(Strategy):
    """Packs, fills, balances and schedules the groups as the options say."""

    def check(self, request: PlanRequest) -> None:
        """Raise ValueError if the packing rules out the groups or other options."""
        algorithm = request.algorithm
        what = "cuts samples" if algorithm.cut else "pads whole batches"
        if algorithm.needs_one_group and len(request.groups) != 1:
            raise ValueError(
                f"packing {algorithm.name!r} {what}, so it needs exactly one group; give one, or another packing"
            )
        if algorithm.is_padded and request.balance.refine:
            raise ValueError(
                f"packing {algorithm.name!r} {what}, so it cannot exchange samples; give --balance sort, "
                "window:K or none, without +refine"
            )
        if algorithm.is_padded and request.shapes_rows:
            raise ValueError(
                f"packing {algorithm.name!r} {what}, which do not support --align, --max-samples or --mask "
                "causal; leave them out, or give another packing"
            )
        capacity = request.groups[0].capacity
        if algorithm.needs_power_of_two and capacity & (capacity - 1):
            below = 1 << (capacity.bit_length() - 1)
            raise ValueError(
                f"packing {algorithm.name!r} cuts samples into powers of two, so the capacity must be one, got "
                f"{capacity}; give {below}{f' or {2 * below}' if 2 * below < 2**31 else ''}, or another packing"
            )

    def plan(self, pieces: Pieces, request: PlanRequest) -> Plan:
        """From the longest group down; see `by_group.arrange`."""
        from packer_cli.plan.strategies.by_group.arrange import plan_groups

        return plan_groups(pieces, request)

    def rest(self, plan: Plan, chosen: Int64Array, is_short: BoolArray, request: PlanRequest, epoch: int) -> Schedule:
        """Iterations of one group; see `by_group.arrange`."""
        from packer_cli.plan.strategies.by_group.arrange import rest_of_groups

        return rest_of_groups(plan, chosen, is_short, request, epoch)


class LongestAlone(GroupStrategy):
    """Uses the longest of the groups, which every sample fits."""

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """The longest alone."""
        return (given[-1],)


class OnlyCompared(LongestAlone):
    """Shows what other code does, with packings of its own; its plans are never written."""

    is_packed = False
    ignores = frozenset({"packing", "fill", "balance", "step_mix", "curriculum", "curriculum_steps"})
    lacks = frozenset({"align", "max_samples", "mask"})
