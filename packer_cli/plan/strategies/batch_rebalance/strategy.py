"""transformers' `batch_rebalance` as a strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packer_cli.plan.strategies.by_group.strategy import OnlyCompared

if TYPE_CHECKING:
    from packer_cli.plan.core.types import Pieces, Plan
    from packer_cli.plan.strategies.protocol import PlanRequest


class BatchRebalance(OnlyCompared):
    """Padded batches of like cost, formed step by step."""

    name = "batch-rebalance"
    summary = "transformers' batch_rebalance (5.23): each step's samples in padded batches of like cost"
    short = "transformers' rebalanced batches, padded"
    defaults = {"packing": "padded", "balance": "none"}
    needs = frozenset({"tokens of a step"})
    keeps_steps = True

    def bytes_a_sample(self, request: PlanRequest) -> int:
        """Measured on samples of 550 tokens, in steps of 2M of them."""
        return 180

    def plan(self, pieces: Pieces, request: PlanRequest) -> Plan:
        """Step by step, in random order."""
        from packer_cli.plan.core.schedule import one_group_each
        from packer_cli.plan.core.segments import padded_lengths
        from packer_cli.plan.strategies.assemble import assemble, pack_sizes
        from packer_cli.plan.strategies.batch_rebalance.steps import rebalanced_steps
        from packer_cli.plan.strategies.by_group.arrange import padded_plan

        batches, iterations, step = rebalanced_steps(pieces.length, request)
        padded = padded_lengths(batches.offsets, batches.pieces, pieces.length)
        sizes = pack_sizes([batches], padded, request)
        sizes = sizes._replace(tokens=pack_sizes([batches], pieces.length, request).tokens)
        of_group = one_group_each(request.groups, [iterations], sizes.aligned)
        return padded_plan(assemble(pieces, [batches], replace(of_group, step=step), sizes, request))
