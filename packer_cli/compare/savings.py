"""Compares predicted epochs with the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
class PlanSimulation:
    """A plan's predicted epoch beside that of the baseline of `hbpack stats`, with equal tokens per step."""

    predicted_with: Mapping[str, Any]
    """Where predicted times come from: a profile, or a model's shape and a data sheet."""
    figures: EpochFigures
    """The predicted epoch: `overall`, by `groups`, and `notes`."""
    baseline_name: str
    """What the plan is compared with."""
    baseline: OverallFigures
    """Its predicted epoch."""
    saves: Savings
    """What the plan saves over it: GPU-days, their share, and the speed-up."""
    padded: OverallFigures | None = None
    """Of padded batches, as in a trainer that does not pack; None where the plan's rows cannot be such."""

    def values(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "predicted_with": dict(self.predicted_with),
            **asdict(self.figures),
            "baseline": {"name": self.baseline_name, **asdict(self.baseline)},
            "saves": asdict(self.saves),
            **({"padded": asdict(self.padded)} if self.padded else {}),
        }


def plan_simulation(plan: Plan, simulator: Simulator, naive: Baseline, padded: Plan | None = None) -> PlanSimulation:
    """Predict a plan's epoch, that of its baseline, and that of padded batches. Price: O(pieces + slots).

    Args:
        naive: what `baseline_of` makes.
        padded: what `padded_baseline` makes; None leaves it out.

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    figures = simulator.figures(plan)
    baseline = simulator.figures(naive.plan).overall
    return PlanSimulation(
        predicted_with=simulator.model.origin,
        figures=figures,
        baseline_name=naive.name,
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
