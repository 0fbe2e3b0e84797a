"""Compares predicted epochs with the baseline, and says which of several predicted strategies to take, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packer_cli.plan.core.types import Plan
from packer_cli.plan.figures import Baseline
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.simulate.figures import EpochFigures, OverallFigures, Simulator
from packer_cli.sizes import duration


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


ALIKE = 0.01
"""Predicted epochs within this share of each other count as equally long."""

_PARTS = {
    "waiting": "wait for slower ones",
    "padding": "compute padding",
    "communication": "communicate",
    "recompute": "repeat forward passes",
    "bubbles": "idle in pipeline bubbles",
    "sync": "reducing gradients and gathering weights once a step",
    "constant": "pay the fixed price of a micro-batch",
}
"""What GPUs do in each part of their time that strategies differ in."""


def preferred(seconds: Mapping[str, float], strategies: Mapping[str, str]) -> str:
    """The name to take of predicted epochs: the shortest; of those as fast, one that asks nothing of a trainer.

    Args:
        seconds: name to predicted epoch, at least one.
        strategies: name to strategy.
    """
    names = sorted(seconds, key=lambda name: seconds[name])
    alike = (name for name in names if seconds[name] <= seconds[names[0]] * (1 + ALIKE))
    return next((name for name in alike if not STRATEGIES[strategies[name]].demands), names[0])


def advice(epochs: Mapping[str, OverallFigures]) -> str | None:
    """The strategy with the shortest predicted epoch, against the slowest; others that are as fast.

    A strategy that asks more of a trainer is not recommended for a gain below `ALIKE`. None where none may be packed.

    Args:
        epochs: strategy to predicted epoch, at least one.
    """
    seconds = {name: epoch.seconds for name, epoch in epochs.items()}
    names = sorted(seconds, key=lambda name: seconds[name])
    packed = {name: name for name in names if STRATEGIES[name].is_packed}
    if not packed:
        return None
    chosen = preferred({name: seconds[name] for name in packed}, packed)
    alike = [name for name in names if seconds[name] <= seconds[names[0]] * (1 + ALIKE)]
    text = f"Take {chosen}: an epoch of {duration(epochs[chosen].seconds)}"
    if len(names) > 1 and (slowest := names[-1]) != chosen:
        text += _against(chosen, slowest, epochs)
    others = [name for name in alike if name != chosen and name in packed]
    if others:
        text += f". Within {ALIKE:.0%} of it: {', '.join(others)}"
    needs = STRATEGIES[chosen].demands
    plain = next((name for name in packed if not STRATEGIES[name].demands), None)
    if needs:
        text += f". Your trainer must {needs}"
        text += f"; without that, take {plain} ({duration(epochs[plain].seconds)})" if plain else ""
    return text + "."


def _against(chosen: str, slowest: str, epochs: Mapping[str, OverallFigures]) -> str:
    best, worst = epochs[chosen], epochs[slowest]
    text = f", {worst.seconds / best.seconds:.2f} times as fast as {slowest}"
    more = {part: worst.split[part] - best.split[part] for part in _PARTS}
    part = max(_PARTS, key=lambda part: more[part])
    if more[part] > 0.2 * (worst.gpu_hours - best.gpu_hours):
        shares = [epoch.split[part] / epoch.gpu_hours for epoch in (worst, best)]
        text += f", whose GPUs {_PARTS[part]} for {shares[0]:.0%} of their time ({chosen}: {shares[1]:.1%})"
    return text
