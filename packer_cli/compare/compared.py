"""A row of a comparison, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packer_cli.compare.candidates import groups_and_degrees
from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.rows import Kind, Row
from packer_cli.compare.savings import Savings
from packer_cli.config.no_effect import without_effect
from packer_cli.config.trainers import asked_of_trainer
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
    """How it is planned."""
    name: str
    """As `--algorithms` or `--strategies` take it."""
    kind: Kind
    note: str
    is_own: bool
    """Whether it is what the options themselves plan."""
    options: dict[str, str]
    """Of the plan, as `hbpack plan` takes them."""
    repeats: Hidden[tuple[ComparedRow, ...]]
    """The same with other seeds."""
    lacks: tuple[str, ...]
    """Abilities that it asks for and the trainer lacks, see `config.trainers`."""
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
    """What its predicted epoch saves over the baseline's."""

    @property
    @in_json
    def deviations(self) -> dict[str, float] | None:
        """Standard deviations over all seeds, of `overall` and of the epoch's `seconds`; None of one seed."""
        rows = [row for row in (self, *self.repeats) if row.overall is not None]
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


def compared_row(spec: Row, outcome: RowFigures | Failed, *repeats: RowFigures | Failed) -> ComparedRow:
    """The row with its figures, or with the reason why it has none; and with those of other seeds."""
    figures = dict(vars(outcome))
    if spec.candidates and not isinstance(outcome, Failed):
        spec = replace(spec, plan=spec.candidates[figures.pop("chosen", 0)])
    figures.pop("chosen", None)
    config = spec.config
    options = {name: getattr(config, name) for name in _OPTIONS if name not in without_effect(config)}
    others = tuple(compared_row(replace(spec, candidates=()), each) for each in repeats)
    return ComparedRow(
        spec=spec,
        repeats=others,
        name=spec.name,
        kind=spec.kind,
        note=spec.note,
        is_own=spec.is_own,
        options={"strategy": config.strategy, **groups_and_degrees(config), **options},
        lacks=tuple(sorted(asked_of_trainer(spec.request) - spec.able)),
        **({"error": outcome.reason} if isinstance(outcome, Failed) else {"error": None, **figures}),
    )
