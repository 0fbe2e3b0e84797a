"""WLB-LLM (arXiv 2503.17924) as a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packer_cli.errors import ConfigError
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import PlanRequest, Prediction, Question, Strategy
from packer_cli.sizes import format_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer_cli.cost.models import MemoryModel
    from packer_cli.plan.core.types import Int64Array, Pieces, Plan, Schedule

_ROOM = 5 / 4
"""Windows that a micro-batch should hold at least: with less, long samples leave no room to even out."""


class Wlb(Strategy):
    """Steps packed from a stream of samples; the capacity of the one group is the context window."""

    name = "wlb"
    summary = "WLB-LLM (arXiv 2503.17924): steps of micro-batches of equal predicted time, for pipelines"
    short = "WLB-LLM's steps of even micro-batches"
    details = (
        "`wlb` takes the capacity of the longest group for the context window (by default, the longest sample), packs "
        "by --packing delay, original, greedy or solver, and evens out --cost 1,24576, or what --model and --gpu, or "
        "--profile, predict."
    )
    defaults = {"groups": "auto", "packing": "delay", "cost": "1,24576", "lockstep": "1"}
    ignores = frozenset({"fill", "balance", "global_tokens", "lockstep", "step_mix", "curriculum", "curriculum_steps"})
    lacks = frozenset({"max_samples", "mask"})
    demands = "run several micro-batches of unlike lengths on each replica in a step"
    baseline_name = "original packing"
    baseline_note = "the same stream of samples, cut into micro-batches of one context window as it comes"
    predicts_cost = True
    plans_streams = True
    keeps_steps = True

    def packings(self) -> Mapping[str, Any]:
        """Packers of its own, which fill whole steps."""
        from packer_cli.plan.strategies.wlb.packers import REGISTRY

        return REGISTRY

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """The longest alone."""
        return (given[-1],)

    def idle_parts(self, options: Any) -> Mapping[str, str]:
        """Thresholds that are given are not tuned."""
        names = {each.partition("=")[0] for each in options.packing.partition(":")[2].split(",")}
        if {"delay", "thresholds"} <= names:
            return {"packing": f"{options.packing}: delay has no effect beside thresholds; leave one of them out"}
        return {}

    def check(self, request: PlanRequest) -> None:
        """Raise ValueError unless micro-batches hold a document as long as the context window, that of the group."""
        (group,) = request.groups[-1:]
        capacity = request.packing_options.capacity(group.capacity)
        if capacity < group.capacity or capacity % group.align:
            multiple = f", and a multiple of {group.align} tokens" if group.align > 1 else ""
            raise ValueError(
                f"option 's_max' of packing {request.algorithm.name!r} must be at least the context window, "
                f"{format_tokens(group.capacity)}{multiple}, got {format_tokens(capacity)}"
            )

    def predict(self, question: Question) -> Prediction:
        """A cost of the whole replica, and the most tokens of a micro-batch, where the options do not give them."""
        from packer_cli.plan.core.cost import Cost
        from packer_cli.plan.strategies.predict import stage_rates
        from packer_cli.plan.strategies.wlb.packers import AUTO

        found = Prediction(groups=question.groups)
        group = question.groups[-1]
        has_room = getattr(question.packing_options, "s_max", None) == AUTO
        if not (question.wants_cost or (has_room and question.has_model)):
            return found
        model = question.load(f"--strategy {self.name}", for_memory=has_room)
        if has_room:
            group = replace(group, capacity=_most_tokens(group, model.memory))
            found = replace(found, packing={"s_max": str(group.capacity)})
        if not question.wants_cost:
            return found
        quadratic, linear, _ = stage_rates(group, model)
        try:
            return replace(found, cost=Cost(quadratic=quadratic, linear=linear))
        except ValueError as error:
            raise ConfigError(f"--cost: {error}") from None

    def plan(self, pieces: Pieces, request: PlanRequest) -> Plan:
        """See `wlb.plan`."""
        from packer_cli.plan.strategies.wlb.plan import plan_steps

        return plan_steps(pieces, request)

    def rest(
        self, plan: Plan, chosen: Int64Array, is_short: NDArray[np.bool_], request: PlanRequest, epoch: int
    ) -> Schedule:
        """The same steps on other replicas."""
        from packer_cli.plan.strategies.wlb.plan import rest_of_steps

        return rest_of_steps(plan, chosen, request, epoch)

    def baseline(self, plan: Plan, request: PlanRequest) -> tuple[Pieces, PlanRequest]:
        """The paper's original packing: the stream as it comes, cut at every window."""
        from packer_cli.plan.core.types import Pieces
        from packer_cli.plan.packing.wrap import join
        from packer_cli.plan.strategies.wlb.packers import REGISTRY, StepOptions

        # Samples that the plan cut where two batches meet are whole again.
        samples, start, total = join(plan.pieces)
        options = StepOptions(micro_batches=request.packing_options.micro_batches)  # type: ignore[attr-defined]
        original = replace(request, algorithm=REGISTRY["original"], packing_options=options)
        return Pieces(samples=samples, start=start, length=total), original

    def bytes_a_sample(self, request: PlanRequest) -> int:
        """Measured on samples of 550 tokens."""
        return 90

    def to_warm(self, request: PlanRequest) -> PlanRequest:
        """Two replicas, to which a kernel deals micro-batches."""
        warmed = super().to_warm(request)
        return replace(warmed, num_gpus=2 * warmed.num_gpus)


def _most_tokens(window: Group, memory: MemoryModel) -> int:
    """Tokens of a micro-batch that memory holds, from one context window to two.

    Layers are checkpointed for `_ROOM` windows and for no more, as each costs every micro-batch time.
    """
    layers = window.checkpoint_layers or memory.least_checkpoint_layers(_ROOM * window.capacity, window.layout)
    multiple = math.lcm(window.align, window.layout.row_multiple)
    longest = memory.longest(window.layout, layers) // multiple * multiple
    return max(window.capacity, min(2 * window.capacity, longest))
