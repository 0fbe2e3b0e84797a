"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows -> one process a row: plan, check, measure -> one table
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packer_cli.compare.advice import advice, preferred
from packer_cli.compare.columns import COLUMNS, COSTED, PREDICTED, Column
from packer_cli.compare.compared import ComparedRow
from packer_cli.compare.row_figures import RowFigures, RowTask, row_figures, save_samples
from packer_cli.compare.rows import Row
from packer_cli.compare.savings import savings
from packer_cli.config import PlanConfig
from packer_cli.config.fields import GIVE
from packer_cli.engine.local import Failed, attempt, run_isolated
from packer_cli.engine.progress import progress_bar
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.format.metrics import GroupChoice, SampleCounts
from packer_cli.plan.core.pieces import Samples, pieces_to_plan, sample_counts
from packer_cli.plan.figures import LengthStats, length_stats
from packer_cli.simulate.figures import Simulator

PRELOAD = "packer_cli.compare.preload"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Plans of the same samples."""

    predicted_with: Mapping[str, Any] | None
    """Where predicted times come from: a profile, or a model's shape and a data sheet; None without predictions."""
    config: PlanConfig
    """The options that the rows were derived from."""
    lengths: LengthStats
    """The distribution of the samples' lengths."""
    counts: SampleCounts
    """What became of the samples under these options; rows with another `--overflow` may hold other samples."""
    rows: tuple[ComparedRow, ...]
    """The plans, in the order of the table."""
    attention: float | None = None
    """Share of the computing time that attention takes; None without a model of time."""
    group_choice: GroupChoice | None = None
    """How automatic groups were chosen; None if they were named."""

    @property
    def best(self) -> ComparedRow | None:
        """The row to pack with: the shortest predicted epoch or, without predictions, the least waiting.

        Without predictions, rows count that have the groups of the options: waiting says nothing of communication. It
        says nothing of pipelines either, and then there is none.
        """
        found = preferred(self.rows)
        if found is not None or any(group.pp_size > 1 for group in self.config.groups):
            return found
        given = self.config.groups
        waiting = [
            (row.figures.metrics.overall.waiting, number)
            for number, row in enumerate(self.rows)
            if row.figures
            and row.spec.may_be_taken
            and (row.spec.kind == "strategy" or row.spec.config.groups == given)
        ]
        return self.rows[min(waiting)[1]] if waiting else None

    @property
    def advice(self) -> str | None:
        """Which strategy to take; None if the rows are no strategies or no epoch is predicted."""
        strategies = [row for row in self.rows if row.spec.kind == "strategy"]
        return advice(strategies, self.attention, is_auto=self.group_choice is not None)

    def values(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **({} if self.predicted_with is None else {"predicted_with": dict(self.predicted_with)}),
            # Its samples are all that there are to plan.
            "config": self.config.model_dump(mode="json", exclude={"validation", "is_validation"}),
            "lengths": self.lengths.values(),
            "counts": asdict(self.counts),
            **({} if self.attention is None else {"attention_share": round(self.attention, 6)}),
            "rows": [row.values() for row in self.rows],
            **({} if self.advice is None else {"advice": self.advice}),
            **({"group_choice": asdict(self.group_choice)} if self.group_choice else {}),
        }


def compare(
    samples: Samples,
    config: PlanConfig,
    rows: Sequence[Row],
    workers: int,
    simulator: Simulator | None = None,
    *,
    by_program: bool = False,
) -> Comparison:
    """Plan every row; the result is the same for any number of workers, with the rows in the order given.

    Price: that of the plans, `workers` at a time, each with its own memory.

    Args:
        config: the options that the rows were derived from.
        simulator: predicts each row's epoch.
        by_program: also prove the least number of packs, see `plan.figures.prove_by_program`.

    Raises:
        ConfigError: the simulator does not know an SP degree of the groups.
        RunError: there is nothing to plan, or a sample is too long under `--overflow error`.
    """
    if simulator is not None:
        for group in config.groups:
            simulator.model.cost.require_known(group.layout)
    # Errors in the samples concern every row, so they are raised here.
    capacity = config.groups[-1].capacity
    pieces = pieces_to_plan(samples, capacity, config.overflow, config.seed)
    counts = sample_counts(samples, samples.chosen(config.seed), pieces, capacity, config.overflow)
    attention = None if simulator is None else simulator.attention_share(pieces.length)
    del pieces
    # Rows with a time limit, and strategies that plan step by step, may take longest, so they start first.
    order = sorted(range(len(rows)), key=lambda i: not (rows[i].has_time_limit or rows[i].plans_steps))
    outcomes: dict[int, RowFigures | Failed] = {}
    with tempfile.TemporaryDirectory(prefix="hbpack-compare-") as name, progress_bar("Planning", unit="rows") as bar:
        folder = Path(name)
        save_samples(samples, folder)
        tasks = {
            i: RowTask(
                request=rows[i].request,
                overflow=rows[i].config.overflow,
                folder=folder,
                weights=samples.weights,
                simulator=simulator,
                by_program=by_program,
            )
            for i in order
        }
        elsewhere = [i for i in order if not rows[i].is_of_process]
        bar(0, len(rows))
        for number, outcome in run_isolated(row_figures, [tasks[i] for i in elsewhere], workers, [PRELOAD]):
            outcomes[elsewhere[number]] = outcome
            bar(len(outcomes), len(rows))
        for i in tasks.keys() - outcomes.keys():
            outcomes[i] = attempt(row_figures, tasks[i])
            bar(len(outcomes), len(rows))
    return Comparison(
        predicted_with=simulator.model.origin if simulator else None,
        config=config,
        lengths=length_stats(samples.lengths),
        counts=counts,
        attention=attention,
        rows=tuple(_compared(row, outcomes[i]) for i, row in enumerate(rows)),
    )


def with_savings(comparison: Comparison, baseline: int) -> Comparison:
    """The comparison with what each predicted row saves over that of index `baseline`, unless that one failed."""
    figures = comparison.rows[baseline].figures
    if figures is None or figures.simulation is None:
        return comparison
    naive = figures.simulation.overall
    rows = (
        replace(row, saves=savings(row.figures.simulation.overall, naive))
        if row.figures and row.figures.simulation
        else row
        for row in comparison.rows
    )
    return replace(comparison, rows=tuple(rows))


def _compared(row: Row, outcome: RowFigures | Failed) -> ComparedRow:
    if isinstance(outcome, Failed):
        return ComparedRow(spec=row, error=outcome.reason, figures=None)
    return ComparedRow(spec=row, error=None, figures=outcome)


_COLUMN_OF = {column.name: column for column in COLUMNS}


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse `main`, `all` or a comma-separated list of columns.

    Raises:
        ConfigError: there is no such column.
    """
    if text in ("main", "all"):
        return tuple(column for column in COLUMNS if text == "all" or not column.is_extra)
    return tuple(_column(name.strip(), "--columns") for name in text.split(","))


def _column(text: str, option: str) -> Column:
    name = text.lower().replace("_", "-")
    if name not in _COLUMN_OF:
        near = did_you_mean(name, _COLUMN_OF)
        raise ConfigError(f"{option}: there is no column {text!r}{near}; columns: {', '.join(_COLUMN_OF)}")
    return _COLUMN_OF[name]


def parse_sort(text: str, *, has_model: bool = True, has_cost: bool = True) -> tuple[Column, bool]:
    """Parse `COLUMN` or `-COLUMN` into (column, whether the order is descending).

    Args:
        has_model: whether epochs are predicted.
        has_cost: whether plans are balanced by a cost other than attention work.

    Raises:
        ConfigError: there is no such column, or it needs a time model or a cost.
    """
    column = _column(text.removeprefix("-"), "--sort")
    if not has_model and column in PREDICTED:
        raise ConfigError(f"--sort {text} needs {GIVE}")
    if not has_cost and column in COSTED:
        raise ConfigError(f"--sort {text} needs a --cost, such as 1,24576; without one it is ABR")
    return column, text.startswith("-")


def sort_rows(rows: Sequence[ComparedRow], order: tuple[Column, bool] | None) -> tuple[ComparedRow, ...]:
    """Sort rows by a column, stably; rows without a figure come last."""
    if order is None:
        return tuple(rows)
    column, is_descending = order
    figures = [column.value(row.figures) if row.figures else None for row in rows]
    known = [(-figure if is_descending else figure, i) for i, figure in enumerate(figures) if figure is not None]
    return (*(rows[i] for _, i in sorted(known)), *(rows[i] for i, figure in enumerate(figures) if figure is None))
