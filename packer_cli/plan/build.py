"""Builds a plan: its strategy decides, and then each pack's CP sharding is chosen."""

from __future__ import annotations

from packer_cli.plan.core.sharding import choose_sharding
from packer_cli.plan.core.types import Pieces, Plan
from packer_cli.plan.strategies.protocol import PlanRequest


def build_plan(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces, each in exactly one pack. Price: that of the strategy. `check_plan` proves the result."""
    return choose_sharding(request.strategy.plan(pieces, request), request.sharding)
