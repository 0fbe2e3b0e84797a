"""WLB-LLM (arXiv 2503.17924) as a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from packer_cli.errors import ConfigError
from packer_cli.lazy import Later
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Load, OptionValues, PlanRequest, Strategy, stage_rates
from packer_cli.sizes import format_tokens

if TYPE_CHECKING:
    from packer_cli.cost.predict import MemoryModel
    from packer_cli.plan.core.types import Pieces, Plan

_CAPACITIES = 5
"""Number of capacities of a micro-batch to try, from one context window up."""


class Wlb(Strategy):
    """Steps packed from a stream of samples; the capacity of the one group is the context window."""

    packers: ClassVar[tuple[str, ...]] = ("delay", "original", "greedy", "solver")
    name = "wlb"
    summary = "WLB-LLM (arXiv 2503.17924): steps of micro-batches of equal predicted time, for pipelines"
    defaults = {"groups": "auto", "packing": "delay", "cost": "1,24576", "lockstep": "1"}
    ignores = frozenset({"fill", "balance", "lockstep", "step_mix", "curriculum_steps"})
    demands = "run several micro-batches of unlike lengths on each replica in a step"
    baseline_name = "original packing"
    baseline_note = "the same stream of samples as it comes, in rows of at most one context window"
    needs = frozenset({"a stream"})
    sample_bytes = 90
    plan = Later("packer_cli.plan.strategies.wlb.plan", "plan_steps")
    rest = Later("packer_cli.plan.strategies.wlb.plan", "rest_of_steps")

    def packings(self) -> Mapping[str, Any]:
        """Return the packers of the strategy's own, which fill whole steps."""
        from packer_cli.plan.strategies.wlb.packers import REGISTRY

        return {name: REGISTRY[name] for name in self.packers}

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the longest alone."""
        return (given[-1],)

    def without_effect(self, options: Any) -> Mapping[str, str]:
        """Name idle options: given thresholds are not tuned, and a step's tokens say how many micro-batches it has."""
        names = {each.partition("=")[0] for each in options.packing.partition(":")[2].split(",")}
        if {"delay", "thresholds"} <= names:
            return {"packing": f"{options.packing}: delay has no effect beside thresholds; leave one of them out"}
        if "micro_batches" in names and options.global_tokens is not None:
            why = "has no effect beside micro_batches of the packing; leave one of them out"
            return {"global_tokens": f"{options.global_tokens} {why}"}
        return {}

    def check(self, request: PlanRequest) -> None:
        """Raise ValueError unless micro-batches hold a document as long as the context window, that of the group."""
        from packer_cli.plan.core.cost import require_exact
        from packer_cli.plan.strategies.wlb.packers import StepOptions

        options = request.packing_options
        assert isinstance(options, StepOptions)
        (group,) = request.groups[-1:]
        capacities = options.capacities(group.capacity)
        try:
            require_exact(request.linear, [replace(group, capacity=capacities[-1])], request.num_gpus)
        except ValueError as error:
            raise ConfigError(f"--cost: {error}") from None
        for capacity in capacities:
            if capacity < group.capacity or capacity % group.align:
                multiple = f", and a multiple of {group.align} tokens" if group.align > 1 else ""
                raise ValueError(
                    f"option 's_max' of packing {request.algorithm.name!r} must be at least the context window, "
                    f"{format_tokens(group.capacity)}{multiple}, got {format_tokens(capacity)}"
                )
        if len(capacities) > 1 and request.rates is None:
            raise ValueError(
                f"option 's_max' of packing {request.algorithm.name!r} has several values, from which predicted time "
                "chooses; give --model and --gpu, or --profile, or one value"
            )

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict a cost of the whole replica, and the capacities to choose from, each with its seconds."""
        from packer_cli.plan.core.cost import Cost
        from packer_cli.plan.packing import parse_packing
        from packer_cli.plan.strategies.wlb.packers import AUTO, DelayOptions

        window, found = options.groups[-1], {"groups": options.groups}
        _, given = parse_packing(options.packing, self.packings())
        delay = given if isinstance(given, DelayOptions) and options.has_gpu_model else None
        is_auto = delay is not None and delay.s_max == AUTO
        if not (wants_cost or delay):
            return found
        model = load(f"--strategy {self.name}", for_memory=is_auto)
        if delay is not None:
            capacities = delay.capacities(window.capacity)
            if is_auto:
                capacities, text = _capacities(window, model.memory), options.packing
                found["packing"] = f"{text}{',' if ':' in text else ':'}s_max={'+'.join(map(str, capacities))}"
            found["group_costs"] = tuple(stage_rates(replace(window, capacity=each), model) for each in capacities)
        if wants_cost:
            quadratic, linear, _ = stage_rates(window, model)
            try:
                found["cost"] = str(Cost(quadratic=quadratic, linear=linear))
            except ValueError as error:
                raise ConfigError(f"--cost: {error}") from None
        return found

    def baseline(self, plan: Plan, request: PlanRequest) -> tuple[Pieces, PlanRequest]:
        """Return the paper's original packing: the same arrivals as they come."""
        from packer_cli.plan.strategies.wlb.arrival import before_arrival
        from packer_cli.plan.strategies.wlb.packers import REGISTRY, StepOptions

        own = request.packing_options
        assert isinstance(own, StepOptions)
        options = StepOptions(micro_batches=own.micro_batches, cut=own.cut)
        original = replace(request, algorithm=REGISTRY["original"], packing_options=options, rates=None)
        return before_arrival(plan.pieces, request.groups[-1].capacity), original


class Plain4d(Wlb):
    """WLB-LLM's first baseline."""

    packers = ("original",)
    name = "plain-4d"
    summary = "WLB-LLM's baseline Plain-4D (arXiv 2503.17924): rows as they come, CP ranks cut them per sequence"
    defaults = {**Wlb.defaults, "packing": "original:cut=row", "cp_sharding": "sequence"}
    ignores = Wlb.ignores | {"cp_sharding"}


class Fixed4d(Wlb):
    """WLB-LLM's second baseline."""

    packers = ("greedy", "solver")
    name = "fixed-4d"
    summary = (
        "WLB-LLM's baseline Fixed-4D (arXiv 2503.17924): each step's samples in rows of at most a window, and the "
        "faster of the two CP shardings for all"
    )
    defaults = {**Wlb.defaults, "packing": "greedy", "cp_sharding": "static"}
    ignores = Wlb.ignores | {"cp_sharding"}


def _capacities(window: Group, memory: MemoryModel) -> list[int]:
    """Return the tokens of a micro-batch to try, from one context window to what memory holds, at most two."""
    multiple = math.lcm(window.align, window.layout.row_multiple)
    longest = memory.longest(window.layout, window.checkpoint_layers or None)
    most = max(window.capacity, min(2 * window.capacity, longest))
    steps = [window.capacity + (most - window.capacity) * k // (_CAPACITIES - 1) for k in range(_CAPACITIES)]
    return sorted({window.capacity, *(each // multiple * multiple for each in steps if each >= window.capacity)})
