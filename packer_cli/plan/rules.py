"""The rules of a plan: the user's decisions as typed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from packer_cli.plan.core.attention_rates import ShardingRule
from packer_cli.plan.core.cost import linear_of_tokens
from packer_cli.plan.core.groups import Group, require_aligned
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import UNLIMITED, Lockstep, Mask
from packer_cli.plan.kernels.balance import BalanceRule
from packer_cli.plan.packing import PackingAlgorithm, PackingOptions
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.wlb.rules import WlbRules


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """Everything besides the lengths that decides a plan."""

    groups: tuple[Group, ...]
    """By increasing capacity, each a multiple of its `align`. The GPUs of each one's replica divide `num_gpus`; where
    iterations mix degrees, the largest fits."""
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
    """Which shorter samples fill the free space of long packs, see `plan.kernels.fill`."""
    linear: int = 0
    """Tokens, at least 0: the plan evens out work of s (s + linear) per sample, see `plan.core.cost`. `cost.require_exact`
    limits it; `algorithm` must be built for `evened` (`PackingAlgorithm.with_linear`)."""
    lockstep: Lockstep = None
    """GPUs that run micro-batches in lockstep, see `Plan.lockstep`."""
    replica_costs: DegreeCosts | None = None
    """Seconds of a replica of each group: the iterations mix the degrees of all groups (FlexSP), and `algorithm`,
    `fill` and all of `balance` but its window have no effect."""
    scheme_costs: SchemeCosts | None = None
    """Seconds of a pipeline of each group, whose layouts differ: each step chooses pipelines that divide the GPUs
    (Hydraulis). `steps.global_tokens` is a step's most tokens, and all else about packing and steps has no effect."""

    wlb: WlbRules | None = None
    """Steps are packed from a stream of samples (WLB-LLM): the one group's capacity is the context window, and
    `algorithm`, `fill`, `balance`, `steps` and `lockstep` have no effect."""
    sharding: ShardingRule = field(default_factory=ShardingRule)
    """How CP ranks divide the rows that they share."""
    mask: Mask = "document"
    """With which the packs are trained on. A causal one over whole rows evens out tokens, see `evened`."""
    max_samples: int = UNLIMITED
    """Most pieces of a pack, at least 1; not for iterations that mix degrees."""

    def costs_of(self, groups: Sequence[Group]) -> SchemeCosts | None:
        """`scheme_costs` of these groups, which a plan uses; None without them."""
        return self.scheme_costs and self.scheme_costs.select([self.groups.index(group) for group in groups])

    @property
    def evened(self) -> int:
        """The linear term of what the plan evens out: `linear`, or one so great that only tokens count."""
        return self.linear if self.mask == "document" else linear_of_tokens(self.groups, self.num_gpus)

    @property
    def shapes_rows(self) -> bool:
        """Whether rows are more than samples one after another: aligned, limited in number, or without borders."""
        is_aligned = any(group.align > 1 for group in self.groups)
        return is_aligned or self.max_samples != UNLIMITED or self.mask != "document"

    def __post_init__(self) -> None:
        for group in self.groups:
            require_aligned(group)
        # Iterations that mix degrees move samples between groups.
        assert self.replica_costs is None or len({group.align for group in self.groups}) == 1
        if self.wlb:
            self.wlb.require_room(self.groups[-1])
        what = "cuts samples" if self.algorithm.cut else "pads whole batches"
        if self.algorithm.needs_one_group and len(self.groups) != 1:
            raise ValueError(
                f"packing {self.algorithm.name!r} {what}, so it needs exactly one group; give one, or another packing"
            )
        if self.algorithm.is_padded and self.balance.refine:
            raise ValueError(
                f"packing {self.algorithm.name!r} {what}, so it cannot exchange samples; give --balance sort, "
                "window:K or none, without +refine"
            )
        if self.algorithm.is_padded and self.shapes_rows:
            raise ValueError(
                f"packing {self.algorithm.name!r} {what}, which do not support --align, --max-samples or --mask "
                "causal; leave them out, or give another packing"
            )
        capacity = self.groups[0].capacity
        if self.algorithm.needs_power_of_two and capacity & (capacity - 1):
            below = 1 << (capacity.bit_length() - 1)
            raise ValueError(
                f"packing {self.algorithm.name!r} cuts samples into powers of two, so the capacity must be one, got "
                f"{capacity}; give {below}{f' or {2 * below}' if 2 * below < 2**31 else ''}, or another packing"
            )
