"""Compares predicted epochs with the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packer_cli.plan.core.types import Plan
from packer_cli.plan.figures import Baseline
from packer_cli.simulate.figures import EpochFigures, OverallFigures, Simulator


@dataclass(frozen=True, kw_only=True)
class Savings:
    """What an epoch saves over a baseline."""

    gpu_days: float
    share: float
    """Of the baseline's."""
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
    """What the plan is compared with."""
    saves: Savings
    """What the plan saves over it: GPU-days, their share, and the speed-up."""
    padded: OverallFigures | None = None
    """The same samples in padded batches, as in a trainer that does not pack; None where the plan's rows cannot be
    such."""


def plan_simulation(plan: Plan, simulator: Simulator, naive: Baseline, padded: Plan | None = None) -> PlanSimulation:
    """Predict a plan's epoch, that of its baseline, and that of padded batches. Price: O(pieces + slots).

    Args:
        naive: what `baseline_of` makes.
        padded: what `padded_baseline` makes; None leaves it out.

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    figures = simulator.figures(plan)
    baseline = NamedFigures(name=naive.name, **vars(simulator.figures(naive.plan).overall))
    return PlanSimulation(
        **vars(figures),
        predicted_with=simulator.model.origin,
        baseline=baseline,
        saves=savings(figures.overall, baseline),
        padded=simulator.figures(padded).overall if padded else None,
    )


def savings(overall: OverallFigures, baseline: OverallFigures) -> Savings:
    """What an epoch saves over a baseline."""
    days, naive = overall.gpu_days, baseline.gpu_days
    return Savings(
        gpu_days=naive - days,
        share=1 - days / naive if naive else 0.0,
        speedup=naive / days if days else 1.0,
    )
