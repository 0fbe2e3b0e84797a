"""FlexSP (arXiv 2412.01523) as a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer_cli.lazy import Later
from packer_cli.plan.core.groups import Group, divisors
from packer_cli.plan.strategies.protocol import Load, OptionValues, UnlikeDegrees


class MixedDegrees(UnlikeDegrees):
    """Strategy of packs of several SP degrees in an iteration: the base of this package's."""

    needs = frozenset({"a cost model"})
    rest = Later("packer_cli.plan.strategies.flexsp.plan", "rest_of_mixed")

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the given groups, and one for each other SP degree that divides the longest's.

        >>> groups = FlexSpAll().groups([Group(capacity=16384), Group(capacity=131072, sp_size=8)])
        >>> [str(group) for group in groups]
        ['16k:1', '32k:2', '64k:4', '128k:8']
        """
        longest = given[-1]
        on_a_gpu = max(-(-group.capacity // group.sp_size) for group in given)
        degrees = [degree for degree in divisors(longest.sp_size) if on_a_gpu * degree < longest.capacity]
        groups = [replace(longest, capacity=on_a_gpu * degree, sp_size=degree) for degree in degrees]
        # Capacities still rise with degrees when these are among those of one share on a GPU.
        others = (group for group in given if group.sp_size < longest.sp_size and longest.sp_size % group.sp_size)
        groups += [group for group in others if group.capacity >= on_a_gpu * (group.sp_size - 1)]
        return (*sorted(groups, key=lambda group: group.sp_size), longest)

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict the seconds of each group.

        Leave out a group whose degree divides the longest's and has no cost, as it was not measured.
        """
        send = load(f"--strategy {self.name}").cost.send
        longest = options.groups[-1].sp_size
        groups = (g for g in options.groups if g.sp_size in (1, longest, *send) or longest % g.sp_size)
        return super().predict(options.model_copy(update={"groups": tuple(groups)}), load, wants_cost)


class FlexSp(MixedDegrees):
    """FlexSP as published: batches of samples as they come, each planned for itself."""

    name = "flexsp"
    summary = "FlexSP (arXiv 2412.01523): each step is planned for itself, in iterations that mix SP degrees"
    defaults = {"packing": "search"}
    ignores = frozenset({"fill", "balance", "cost", "step_mix", "curriculum_steps"})
    needs = frozenset({"a cost model", "tokens of a step"})
    sample_bytes = 130
    plan = Later("packer_cli.plan.strategies.flexsp.plan", "plan_in_batches")

    def packings(self) -> Mapping[str, Any]:
        """Return the solvers of a micro-batch."""
        from packer_cli.plan.strategies.flexsp.batches import SOLVERS

        return SOLVERS


class BatchAda(FlexSp):
    """FlexSP's baseline: the best single degree for each batch."""

    name = "batchada"
    summary = "FlexSP's baseline BatchAda (arXiv 2412.01523): each step at the one SP degree that suits it best"
    ignores = FlexSp.ignores | {"packing"}
    demands = "run iterations of any SP degree"
    ability = "degrees"


class FlexSpAll(MixedDegrees):
    """Iterations of replicas of unlike SP degrees and near-equal predicted time, over the whole data set."""

    name = "flexsp:all"
    summary = "our FlexSP: the whole data set at once, in iterations that mix SP degrees of equal time"
    ignores = frozenset({"packing", "fill"})
    plan = Later("packer_cli.plan.strategies.flexsp.plan", "plan_mixed")

    def without_effect(self, options: Any) -> Mapping[str, str]:
        """Name idle options: replicas are balanced by predicted time; work decides the order of iterations at most."""
        found, (order, _, refine) = {}, options.balance.partition("+")
        if not order.startswith("window:"):
            found["balance"] = (
                f"{options.balance} has no effect on --strategy {self.name}, which balances predicted time, over the "
                "whole data set or, with window:K, over K iterations at a time; give window:K, or leave it out"
            )
        elif refine:  # Samples are not exchanged by work.
            why = f"refine has no effect on --strategy {self.name}; give --balance {order}"
            found["balance"] = f"{options.balance}: {why}"
        if options.step_mix != "stratified" and not options.curriculum_steps:
            found["cost"] = f"has no effect on --strategy {self.name}, which evens out predicted time; leave it out"
        return found
