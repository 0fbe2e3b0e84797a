"""Builds a plan: its strategy decides, and then each pack's CP sharding is chosen."""

from __future__ import annotations

from packer_cli.plan.core.sharding import choose_sharding
from packer_cli.plan.core.types import Pieces, Plan
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
