"""Rows of a comparison and what came of them; what predicted epochs save over baselines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from packer_cli.compare.row_process import RowFigures, candidates, fastest, groups_and_degrees, layout_key
from packer_cli.compare.rows import Row
from packer_cli.config import PlanConfig, PlannedConfig, validate
from packer_cli.config.fields import asked_of_trainer
from packer_cli.config.resolve import resolve, without_effect
from packer_cli.engine.local import Failed
from packer_cli.format.metrics import GroupMetrics, OverallMetrics
from packer_cli.format.records import Hidden, in_json
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
    padded: Plan | None,
    config: PlannedConfig,
    able: Iterable[str],
) -> PlanSimulation:
    """Predict a plan's epoch, that of its baseline, of naive packing at its best, and of padded batches.

    Price: some ISF packings, O(pieces + slots).

    Args:
        naive: what `baseline_of` makes.
        padded: what `padded_baseline` makes; None leaves it out.
        config: the plan's options.
        able: abilities of the trainer, among them those that the plan asks for.

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    figures = simulator.figures(plan)
    baseline = NamedFigures(name=naive.name, **vars(simulator.figures(naive.plan).overall))
    best = _naive_at_best(plan, config, simulator, able)
    return PlanSimulation(
        **vars(figures),
        predicted_with=simulator.model.origin,
        baseline=baseline,
        saves=savings(figures.overall, baseline),
        naive_at_best=best,
        saves_over_naive=savings(figures.overall, best),
        padded=simulator.figures(padded).overall if padded else None,
    )


def _naive_at_best(plan: Plan, config: PlannedConfig, simulator: Simulator, able: Iterable[str]) -> NamedFigures:
    longest = plan.groups[-1]
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


OF_LAYOUT = ("groups", "parallel", "lockstep")
"""Options that say how replicas run."""
_OPTIONS = ("packing", "fill", "balance", "overflow")


@dataclass(frozen=True, kw_only=True)
class ComparedRow(Row):
    """A row and what came of it: figures, or an error."""

    options: dict[str, str]
    """Options of the plan, as `hbpack plan` takes them."""
    repeats: Hidden[tuple[ComparedRow, ...]]
    """A row for each seed, where there are several."""
    is_searched: Hidden[bool]
    """Whether its layout is not that of the options."""
    lacks: tuple[str, ...]
    """Abilities that it asks for and the trainer lacks, see docs/trainers.md."""
    error: str | None
    """Why it failed; None if it has the figures that follow."""
    seconds: float | None = None
    """Time to plan."""
    peak_bytes: int | None = None
    """Memory to plan, above that of the samples; None if the system does not report it."""
    cut_off: bool | None = None
    """Whether a packing used up its time limit."""
    work_left_out: float | None = None
    """Share of the samples' attention work that it does not do, since it cuts more of them than the options."""
    overall: OverallMetrics | None = None
    groups: tuple[GroupMetrics, ...] | None = None
    simulation: EpochFigures | None = None
    """Its predicted epoch, with a model of time."""
    saves: Savings | None = None
    """Savings of its predicted epoch over the baseline's."""

    @property
    @in_json
    def deviations(self) -> dict[str, float] | None:
        """Standard deviations over all seeds, of `overall` and of the epoch's `seconds`; None of one seed."""
        rows = [row for row in self.repeats if row.overall is not None]
        if len(rows) < 2:
            return None
        found = [{**vars(row.overall), "seconds": row.simulation and row.simulation.overall.seconds} for row in rows]
        values = {name: [each[name] for each in found] for name in found[0]}
        return {
            name: float(np.std(each, ddof=1))
            for name, each in values.items()
            if all(isinstance(value, int | float) for value in each)
        }

    @property
    @in_json
    def fits(self) -> bool:
        """Whether it fits in memory, as far as that is predicted."""
        return self.simulation is None or self.simulation.fits

    @property
    def may_be_taken(self) -> bool:
        """Whether it may be recommended beside rows that do the same work: the trainer can run it, and it fits."""
        return self.is_eligible and not self.lacks and self.fits


def compared_row(row: Row, *outcomes: RowFigures | Failed) -> ComparedRow:
    """Return the row with the means of its figures over the seeds, or with the reason why it has none."""
    failed = next((each for each in outcomes if isinstance(each, Failed)), None)
    done = [each for each in outcomes if not isinstance(each, Failed)]
    plan = row.candidates[done[0].chosen] if row.candidates and failed is None else row.plan
    config = plan.config
    options = {name: getattr(config, name) for name in _OPTIONS if name not in without_effect(config)}
    return ComparedRow(
        **vars(row) | {"plan": plan},
        repeats=tuple(compared_row(row, each) for each in done) if len(done) > 1 and failed is None else (),
        is_searched=layout_key(plan) != layout_key(row.plan),
        options={"strategy": config.strategy, **groups_and_degrees(plan), **options},
        lacks=tuple(sorted(asked_of_trainer(plan.request) - row.able)),
        **({"error": failed.reason} if failed else {"error": None, **_mean_figures(done)}),
    )


def _mean_figures(outcomes: Sequence[RowFigures]) -> dict[str, Any]:
    """Return the first figures, with the means of `overall` and of the epoch's; groups are of the first seed."""
    figures = {name: value for name, value in vars(outcomes[0]).items() if name != "chosen"}
    if len(outcomes) > 1:
        figures["overall"] = _mean([each.overall for each in outcomes])
        epochs = [each.simulation for each in outcomes if each.simulation]
        if epochs:
            figures["simulation"] = replace(epochs[0], overall=_mean([each.overall for each in epochs]))
    return figures


def _mean(values: Sequence[Any]) -> Any:
    """Average numbers, field by field of records and dicts; return the first of anything else."""
    first = values[0]
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **{name: _mean([getattr(each, name) for each in values]) for name in vars(first)})
    if isinstance(first, dict):
        return {name: _mean([each[name] for each in values]) for name in first}
    if isinstance(first, bool) or not all(isinstance(value, int | float) for value in values):
        return first
    mean = sum(values) / len(values)
    return round(mean) if isinstance(first, int) else float(f"{mean:.10g}")
