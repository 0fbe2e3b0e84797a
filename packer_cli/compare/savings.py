"""Compares predicted epochs with the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packer_cli.compare.candidates import candidates, groups_and_degrees
from packer_cli.compare.row_process import fastest
from packer_cli.config import PlanConfig, PlannedConfig, validate
from packer_cli.config.fields import abilities, asked_of_trainer
from packer_cli.config.resolve import build, resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Plan
from packer_cli.plan.figures import Baseline
from packer_cli.plan.strategies.registry import BASELINE
from packer_cli.simulate.figures import EpochFigures, OverallFigures, Simulator


@dataclass(frozen=True, kw_only=True)
class Savings:
    """Savings of an epoch over a baseline."""

    gpu_days: float
    share: float
    """Share of the baseline's GPU-days."""
    speedup: float


@dataclass(frozen=True, kw_only=True)
class NamedFigures(OverallFigures):
    """A predicted epoch with a name."""

    name: str


@dataclass(frozen=True, kw_only=True)
class PlanSimulation(EpochFigures):
    """A plan's predicted epoch beside that of the baseline of `hbpack stats`, with equal tokens per step."""

    predicted_with: Mapping[str, Any]
    """Source of the times: a profile, or a model's shape and a data sheet with its assumptions."""
    baseline: NamedFigures
    """Figures that the plan is compared with."""
    saves: Savings
    """Savings of the plan over the baseline: GPU-days, their share, and the speed-up."""
    naive_at_best: NamedFigures
    """Naive packing to the same length, on the best of the layouts that the trainer can run."""
    saves_over_naive: Savings
    """Savings of the plan over naive packing at its best."""
    padded: OverallFigures | None = None
    """The same samples in padded batches, as in a trainer that does not pack; None where the plan's rows cannot be
    such."""


def plan_simulation(
    plan: Plan,
    simulator: Simulator,
    naive: Baseline,
    padded: Plan | None = None,
    *,
    config: PlannedConfig,
    trainer: str | None,
) -> PlanSimulation:
    """Predict a plan's epoch, that of its baseline, of naive packing at its best, and of padded batches.

    Price: some ISF packings, O(pieces + slots).

    Args:
        naive: what `baseline_of` makes.
        padded: what `padded_baseline` makes; None leaves it out.
        config: the plan's options.
        trainer: as in `GpuConfig`; it can run what the plan asks for.

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    figures = simulator.figures(plan)
    baseline = NamedFigures(name=naive.name, **vars(simulator.figures(naive.plan).overall))
    best = _naive_at_best(plan, config, simulator, trainer)
    return PlanSimulation(
        **vars(figures),
        predicted_with=simulator.model.origin,
        baseline=baseline,
        saves=savings(figures.overall, baseline),
        naive_at_best=best,
        saves_over_naive=savings(figures.overall, best),
        padded=simulator.figures(padded).overall if padded else None,
    )


def _naive_at_best(plan: Plan, config: PlannedConfig, simulator: Simulator, trainer: str | None) -> NamedFigures:
    longest = plan.groups[-1]
    able = abilities(trainer) | asked_of_trainer(build(config).request)
    given = {
        **{name: getattr(config, name) for name in _OF_NAIVE}, "strategy": BASELINE, "gpus": plan.num_gpus,
        "groups": [Group(capacity=longest.capacity)], "align": longest.align, "trainer": ",".join(sorted(able)),
        **({} if config.lockstep in ("all", "1") else {"lockstep": config.lockstep}),
    }  # fmt: skip
    own = resolve(validate(PlanConfig, given))
    plans = candidates(own, simulator.model)
    number = fastest([each.request for each in plans], plan.pieces, simulator)[0]
    found = build_plan(plan.pieces, replace(plans[number].request, epochs=1))
    layout = ", ".join(f"--{name} {value}" for name, value in groups_and_degrees(plans[number]).items())
    return NamedFigures(name=f"naive packing at its best, {layout}", **vars(simulator.figures(found).overall))


_OF_NAIVE = ("global_tokens", "mask", "max_samples", "max_path_tokens", "overflow", "seed")
"""Options of a plan that naive packing of the same samples has, too."""


def savings(overall: OverallFigures, baseline: OverallFigures) -> Savings:
    """Return the savings of an epoch over a baseline."""
    days, naive = overall.gpu_days, baseline.gpu_days
    return Savings(
        gpu_days=naive - days,
        share=1 - days / naive if naive else 0.0,
        speedup=naive / days if days else 1.0,
    )
