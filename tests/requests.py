"""What plans are asked for in tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packer_cli.plan.core.attention_rates import ShardingRule
from packer_cli.plan.core.groups import Group, require_aligned
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.kernels.balance import BalanceRule
from packer_cli.plan.packing import parse_packing
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plan.strategies.registry import STRATEGIES


def request(groups: Iterable[Group], num_gpus: int, packing: str = "isf", **options: Any) -> PlanRequest:
    """A request with the plainest of everything that is not given, checked as that of a config is."""
    strategy = STRATEGIES[options.pop("strategy", "balanced")]
    algorithm, packing_options = parse_packing(packing, strategy.packings())
    plain = {"steps": StepRules(), "balance": BalanceRule(), "sharding": ShardingRule()}
    asked = PlanRequest(
        strategy=strategy,
        groups=tuple(groups),
        num_gpus=num_gpus,
        algorithm=algorithm,
        packing_options=packing_options,
        **(plain | options),
    )
    for group in asked.groups:
        require_aligned(group)
    strategy.check(asked)
    return asked
