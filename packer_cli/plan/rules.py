"""The rules of a plan: the user's decisions as typed values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from packer_cli.plan.balance import BalanceRule
from packer_cli.plan.groups import Group
from packer_cli.plan.packing import PackingAlgorithm, PackingOptions
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.types import Lockstep


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """Everything besides the lengths that decides a plan."""

    groups: tuple[Group, ...]
    """By increasing capacity. Each SP degree divides `num_gpus`; where iterations mix degrees, the largest fits."""
    num_gpus: int
    algorithm: PackingAlgorithm
    packing_options: PackingOptions
    steps: StepRules = field(default_factory=StepRules)
    epochs: int = 1
    """Epochs to schedule; all use the same packs."""
    seed: int = 0
    balance: BalanceRule = field(default_factory=BalanceRule)
    """Which packs share an iteration."""
    fill: Literal["balanced", "greedy", "longest"] = "greedy"
    """Which shorter samples fill the free space of long packs, see `plan.fill`."""
    linear: int = 0
    """Tokens, at least 0: the plan evens out work of s (s + linear) per sample, see `plan.cost`. `cost.require_exact`
    limits it; `algorithm` must be built for it (`PackingAlgorithm.with_linear`)."""
    lockstep: Lockstep = None
    """GPUs that run micro-batches in lockstep, see `Plan.lockstep`."""
    replica_costs: DegreeCosts | None = None
    """Seconds of a replica of each group: the iterations mix the degrees of all groups (FlexSP), and `algorithm`,
    `fill` and all of `balance` but its window have no effect."""

    def __post_init__(self) -> None:
        if self.algorithm.cut and len(self.groups) != 1:
            raise ValueError(
                f"packing {self.algorithm.name!r} cuts samples anywhere, so it needs exactly one group; "
                "give one, or another packing"
            )
        capacity = self.groups[0].capacity
        if self.algorithm.needs_power_of_two and capacity & (capacity - 1):
            below = 1 << (capacity.bit_length() - 1)
            raise ValueError(
                f"packing {self.algorithm.name!r} cuts samples into powers of two, so the capacity must be one, got "
                f"{capacity}; give {below} or {2 * below}, or another packing"
            )
