"""The strategies that plan group by group, and the rows of comparisons that show what trainers do at run time.

Those rows take the longest group alone, since every sample must fit, and run rows in random order, as the trainers'
samplers do. hbpack writes none of them. Samples over the capacity follow --overflow, as in all rows; TRL cuts them
off, and Axolotl leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packer_cli.lazy import Later
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import NOT_FOR_ALL, PlanRequest, Strategy

if TYPE_CHECKING:
    from packer_cli.plan.core.schedule import StepRules
    from packer_cli.plan.kernels.balance import BalanceRule


class GroupStrategy(Strategy):
    """Packs, fills, balances and schedules the groups as the options say."""

    supports = NOT_FOR_ALL
    plan = Later("packer_cli.plan.strategies.by_group.arrange", "plan_groups")
    rest = Later("packer_cli.plan.strategies.by_group.arrange", "rest_of_groups")

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
        if algorithm.is_padded and request.shapes_rows and not request.limits:
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


class Balanced(GroupStrategy):
    """hbpack's own: every option at its default."""

    name = "balanced"
    summary = "hbpack's own: full rows, fillers that even out work, samples exchanged"

    def step_rules(self, rules: StepRules, balance: BalanceRule) -> StepRules:
        """Return the rules of the options; with pipelines, packs of like work share a step."""
        is_free = rules.mix == "alternate" and not rules.curriculum_steps and balance.window is not None
        return replace(rules, evens_steps=is_free and rules.longest_first and rules.global_tokens is not None)


class Hbp(GroupStrategy):
    """HBP (arXiv 2503.07680, algorithm 2), to the letter."""

    name = "hbp"
    summary = "HBP (arXiv 2503.07680): ISF, GreedyFill, packs sorted by work, 500 steps of short groups first"
    defaults = {
        "packing": "isf", "fill": "greedy", "balance": "sort", "curriculum_steps": 500, "group_algorithm": "hbp",
    }  # fmt: skip

    def step_rules(self, rules: StepRules, balance: BalanceRule) -> StepRules:
        """Return the rules of the options, with a fifth of the short iterations at most in the curriculum."""
        return replace(rules, curriculum_share=0.2)


class LongestAlone(GroupStrategy):
    """Uses the longest of the groups, which every sample fits."""

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Keep the longest alone."""
        return (given[-1],)


class OnlyCompared(LongestAlone):
    """Shows what other code does, with packings of its own; its plans are never written."""

    is_packed = False
    ignores = frozenset({"packing", "fill", "balance", "step_mix", "curriculum_steps"})
    supports = frozenset()


class Naive(LongestAlone):
    """HBP's baseline (arXiv 2503.07680, tables 2 and 6)."""

    name = "naive"
    summary = "HBP's baseline: ISF packs everything to the longest length, in random order"
    defaults = {"packing": "isf", "balance": "none"}


class LongAlignPacking(LongestAlone):
    """LongAlign's packing with loss weights, as its code has it (`sort_and_group.py`)."""

    name = "longalign-packing"
    summary = "LongAlign's packing (arXiv 2401.18058): next fit in random order; the loader has its loss weights"
    defaults = {"packing": "random", "balance": "none"}
    ignores = frozenset({"packing", "fill", "balance"})


class LongAlignSorted(OnlyCompared):
    """LongAlign's sorted batches, without packing, as its code has them."""

    name = "longalign-sorted"
    summary = "LongAlign's sorted batches (arXiv 2401.18058): a sample a row, those of like length side by side"
    defaults = {"packing": "padded:order=sorted,batch=1", "balance": "sort"}


class Padded(OnlyCompared):
    """A trainer that does not pack."""

    name = "padded"
    summary = "random batches, as large as fit, padded to their longest sample"
    defaults = {"packing": "padded", "balance": "none"}


class TrlBfd(OnlyCompared):
    """TRL's `packing=True` (`pack_dataset` through `datasets.map`, whose batches have 1,000 samples)."""

    name = "trl-bfd"
    summary = "TRL's packing (1.16): best fit decreasing, 1,000 samples of the data at a time; rows in random order"
    defaults = {"packing": "bfd:chunk=1000", "balance": "none"}


class Axolotl(OnlyCompared):
    """Axolotl's `sample_packing: true`, with its default `sample_packing_group_size` and `sample_packing_bin_size`."""

    name = "axolotl"
    summary = "Axolotl's multipack (0.21): first fit in random order, at most 200 samples a pack; rows in random order"
    defaults = {"packing": "ffs:chunk=100000", "balance": "none", "max_samples": 200}


class BatchRebalance(OnlyCompared):
    """Padded batches of like cost, formed step by step; see `by_group.batch_rebalance`."""

    name = "batch-rebalance"
    summary = "transformers' batch_rebalance (5.23): each step's samples in padded batches of like cost"
    defaults = {"packing": "padded", "balance": "none"}
    needs = frozenset({"tokens of a step"})
    sample_bytes = 180
    plan = Later("packer_cli.plan.strategies.by_group.batch_rebalance", "plan_rebalanced")
