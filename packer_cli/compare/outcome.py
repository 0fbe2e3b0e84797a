"""A row of a comparison, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from packer_cli.compare.candidates import groups_and_degrees, layout_key
from packer_cli.compare.row_process import RowFigures
from packer_cli.compare.rows import Kind, Row
from packer_cli.compare.savings import Savings
from packer_cli.config.fields import asked_of_trainer
from packer_cli.config.resolve import without_effect
from packer_cli.engine.local import Failed
from packer_cli.format.metrics import GroupMetrics, OverallMetrics
from packer_cli.format.records import Hidden, in_json
from packer_cli.simulate.figures import EpochFigures

OF_LAYOUT = ("groups", "parallel", "lockstep")
"""Options that say how replicas run."""
_OPTIONS = ("packing", "fill", "balance", "overflow")


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A row and what came of it: figures, or an error."""

    spec: Hidden[Row]
    """Row that says how it is planned."""
    name: str
    """Name as `--algorithms` or `--strategies` take it."""
    kind: Kind
    note: str
    is_own: bool
    """Whether it is what the options themselves plan."""
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
        return self.spec.may_be_taken and not self.lacks and self.fits


def compared_row(spec: Row, *outcomes: RowFigures | Failed) -> ComparedRow:
    """Return the row with the means of its figures over the seeds, or with the reason why it has none."""
    failed = next((each for each in outcomes if isinstance(each, Failed)), None)
    done = [each for each in outcomes if not isinstance(each, Failed)]
    named, first = layout_key(spec.plan), spec
    if spec.candidates and failed is None:
        spec = replace(spec, plan=spec.candidates[done[0].chosen])
    config = spec.config
    options = {name: getattr(config, name) for name in _OPTIONS if name not in without_effect(config)}
    return ComparedRow(
        spec=spec,
        repeats=tuple(compared_row(first, each) for each in done) if len(done) > 1 and failed is None else (),
        is_searched=layout_key(spec.plan) != named,
        name=spec.name,
        kind=spec.kind,
        note=spec.note,
        is_own=spec.is_own,
        options={"strategy": config.strategy, **groups_and_degrees(spec.plan), **options},
        lacks=tuple(sorted(asked_of_trainer(spec.request) - spec.able)),
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
