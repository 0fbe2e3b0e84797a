"""Hydraulis (arXiv 2412.07894) as a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packer_cli.errors import ConfigError
from packer_cli.lazy import Later
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Load, OptionValues, PlanRequest, Strategy

if TYPE_CHECKING:
    from packer_cli.format.layout import Layout
    from packer_cli.plan.core.types import Int64Array, Plan, Schedule


class Hydraulis(Strategy):
    """Each step divides the GPUs among pipelines for the samples of that step."""

    name = "hydraulis"
    summary = "Hydraulis (arXiv 2412.07894): each step divides the GPUs among pipelines of unlike tp, cp and pp"
    defaults = {"packing": "search", "lockstep": "1"}
    ignores = frozenset({"fill", "balance", "cost", "lockstep", "step_mix", "curriculum_steps"})
    supports = frozenset()
    demands = "run pipelines of unlike tp, cp and pp side by side, and change them between steps"
    needs = frozenset({"a cost model", "tokens of a step"})
    mixes_layouts = True
    ability = "unlike-degrees"
    sample_bytes = 180
    plan = Later("packer_cli.plan.strategies.hydraulis.plan", "plan_pipelines")
    choose_layouts = Later("packer_cli.plan.strategies.hydraulis.layouts", "choose_step_layouts")
    figures = Later("packer_cli.plan.strategies.hydraulis.layouts", "measure_imbalances")

    def packings(self) -> Mapping[str, Any]:
        """Return the planners of a step."""
        from packer_cli.plan.strategies.hydraulis.layouts import PACKERS

        return PACKERS

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the longest alone, whose capacity and SP degree limit the layouts."""
        return (replace(given[-1], checkpoint_layers=0),)

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict the layouts worth having, with the seconds of each."""
        from packer_cli.plan.strategies.hydraulis.candidates import find_schemes

        model, longest = load(f"--strategy {self.name}", for_memory=True), options.groups[-1]
        schemes = find_schemes(longest.capacity, options.gpus, model, options.parallel, longest.sp_size)
        groups, rates = zip(*schemes, strict=True)
        return {"groups": groups, "group_costs": rates}

    def rest(self, plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
        """Raise ConfigError: the samples of a pack are those for its pipeline in its step."""
        raise ConfigError(
            f"--strategy {self.name} divides the GPUs of each step among pipelines for the samples of that step, "
            f"which rebalance cannot change; pack again with --gpus {request.num_gpus}"
        )

    def require_gpus(self, layouts: Sequence[Layout], num_gpus: int) -> None:
        """Allow any number: a layout is found for it."""
