"""Builds a plan: its strategy decides, and then each pack's CP sharding is chosen."""

from __future__ import annotations

from packer_cli.errors import HbpackError
from packer_cli.plan.core.sharding import choose_sharding
from packer_cli.plan.core.types import Pieces, Plan
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plugins import failed


def build_plan(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces, each in exactly one pack. Price: that of the strategy. `check_plan` proves the result.

    Raises:
        RunError: a strategy of another package failed.
    """
    strategy = request.strategy
    try:
        plan = strategy.plan(pieces, request)
        if not isinstance(plan, Plan):
            raise TypeError(f"its plan is a {type(plan).__name__}")
    except Exception as error:
        if isinstance(error, HbpackError) or type(strategy).__module__.startswith("packer_cli."):
            raise
        raise failed("strategy", strategy.name, error) from error
    return choose_sharding(plan, request.sharding)
