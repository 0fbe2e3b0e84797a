"""FCP, ByteScale and Megatron-LM as strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from packer_cli.errors import ConfigError
from packer_cli.lazy import Later
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Load, OptionValues, Strategy, UnlikeDegrees


class _BySteps(Strategy):
    """A step's samples are planned for themselves, with context parallelism."""

    any_degree: ClassVar[bool] = True
    """Whether degrees may be other than powers of two."""
    ignores = frozenset({"packing", "fill", "balance", "cost", "step_mix", "curriculum_steps"})
    needs = frozenset({"tokens of a step"})
    sample_bytes = 80
    plan = Later("packer_cli.plan.strategies.dynamic_cp.plan", "plan_by_steps")
    rest = Later("packer_cli.plan.strategies.dynamic_cp.plan", "rest_of_steps")

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the longest group, with context parallelism, and one for each lower degree that holds less.

        A rank holds as many tokens as in the given group in which it holds most.

        >>> [f"{group.capacity}:{group.cp_size}" for group in Megatron().groups([Group(capacity=4096, sp_size=4)])]
        ['1024:1', '2048:2', '4096:4']
        """
        from packer_cli.plan.strategies.dynamic_cp.rounds import any_degree, powers_of_two

        highest = given[-1].layout.row_ranks
        on_a_rank = max(-(-group.capacity // group.layout.row_ranks) for group in given)
        longest = replace(given[-1], sp_size=1, cp_size=highest)
        degrees = any_degree(highest) if self.any_degree else powers_of_two(highest)
        lower = [d for d in degrees if on_a_rank * d < longest.capacity]
        return (*(replace(longest, capacity=on_a_rank * d, cp_size=d) for d in lower), longest)


class _DynamicCp(_BySteps, UnlikeDegrees):
    """Degrees that a step's samples decide."""

    demands = "run replicas of unlike CP degrees side by side, and change them between micro-batches"

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict the seconds of each group, if they are needed.

        Raises:
            ConfigError: there are pipelines, which would drain between the rounds.
        """
        if options.groups[-1].pp_size > 1:
            raise ConfigError(
                f"--strategy {self.name} changes CP degrees between micro-batches, and plans no pipelines; leave pp "
                "out of --parallel"
            )
        return super().predict(options, load, wants_cost)


class Fcp(_DynamicCp):
    """FCP, first called DHP."""

    name = "fcp"
    summary = "FCP (arXiv 2602.21788): each step's packs at any CP degree, which ranks that are left raise"
    needs = frozenset({"a cost model", "tokens of a step"})


class ByteScale(_DynamicCp):
    """ByteScale's hybrid data parallelism."""

    name = "bytescale"
    summary = "ByteScale (arXiv 2502.21231): as many ranks as a sample needs, and more samples for ranks that lag"
    defaults = {"lockstep": "1"}
    needs = frozenset({"a cost model", "tokens of a step"})


class Megatron(_DynamicCp):
    """Megatron-LM's dynamic context parallelism."""

    name = "megatron"
    summary = "Megatron-LM's dynamic context parallelism (default_dynamic_cp): CP degrees that lower the busiest rank"
    defaults = {"lockstep": "1"}
    any_degree = False


class DpBalanced(_BySteps):
    """Megatron-LM's older scheduler."""

    name = "dp-balanced"
    summary = "Megatron-LM's dp_balanced: rows at one CP degree, packed in order of arrival"
    defaults = {"lockstep": "1"}

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the longest alone."""
        return super().groups(given[-1:])[-1:]
