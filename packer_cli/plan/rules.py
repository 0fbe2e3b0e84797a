"""The rules of a plan: what a user decides, typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from packer_cli.plan.balance import BalanceRule
from packer_cli.plan.packing import PackingAlgorithm, PackingOptions
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.types import Group


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """All that shapes a plan besides the lengths."""

    groups: tuple[Group, ...]
    """By rising capacity; each degree divides `num_gpus`."""
    num_gpus: int
    algorithm: PackingAlgorithm
    packing_options: PackingOptions
    steps: StepRules = field(default_factory=StepRules)
    epochs: int = 1
    """Epochs to schedule; all use the same packs."""
    seed: int = 0
    balance: BalanceRule = field(default_factory=BalanceRule)
    """How packs come together in iterations."""
    fill: Literal["greedy", "balanced"] = "greedy"
    """With what the free space of long packs is filled: the longest that fits, or what evens their work out."""
    linear: int = 0
    """Tokens, at least 0: the work that is evened out is s (s + linear) a sample, see `plan.cost`. How great it may be
    is what `cost.require_exact` says; `algorithm` is for it (`PackingAlgorithm.with_linear`)."""

    def __post_init__(self) -> None:
        if self.algorithm.cut and len(self.groups) != 1:
            raise ValueError(
                f"packing {self.algorithm.name!r} cuts samples anywhere, so it needs exactly one group; "
                "give one, or another packing"
            )
