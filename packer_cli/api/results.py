"""The results of the API: those of the stages, which a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from packer_cli.compare import Comparison as ComparedPlans
from packer_cli.compare.columns import COLUMNS
from packer_cli.compare.savings import PlanSimulation
from packer_cli.format.metrics import Metrics, PlanMetrics
from packer_cli.html import html_table
from packer_cli.plan.figures import LengthStats
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import GroupFigures, OverallFigures
from packer_cli.sizes import amount, counted, duration, ratio
from packer_cli.stages.stats import Stats as StageStats

_FIGURES: Mapping[str, Callable[[Metrics], str]] = {
    "ABR": lambda figures: ratio(figures.abr),
    "ABR bound": lambda figures: ratio(figures.abr_bound),
    "DBR": lambda figures: ratio(figures.dbr),
    "PR": lambda figures: ratio(figures.pr),
    "CR": lambda figures: ratio(figures.cr),
    "imbalance": lambda figures: f"{figures.imbalance:.3f}",
    "packs": lambda figures: f"{figures.num_packs:,}",
    "iterations": lambda figures: f"{figures.num_iterations:,}",
    "samples": lambda figures: f"{figures.num_samples:,}",
    "tokens": lambda figures: f"{figures.num_tokens:,}",
}


class Stats(StageStats):
    """The figures of lengths and of a plan. `values()` gives them as JSON values, as `hbpack stats --json` does."""

    def _repr_html_(self) -> str:
        tables = []
        if self.lengths:
            tables.append(_lengths_table(self.lengths))
        if self.plan:
            tables.append(_metrics_table(self.plan.metrics))
        return "\n".join(tables)


class Comparison(ComparedPlans):
    """Plans of the same samples: `rows`, each with its `figures`, or the `error` for which it has none."""

    def _repr_html_(self) -> str:
        done = [row.figures for row in self.rows if row.figures]
        columns = [column for column in COLUMNS if any(column.value(each) is not None for each in done)]
        cells = []
        for row in self.rows:
            values = [column.value(row.figures) if row.figures else None for column in columns]
            shown = zip(columns, values, strict=True)
            cells.append([row.spec.name, *("-" if value is None else column.show(value) for column, value in shown)])
        title = f"{counted(self.lengths.num_samples, 'sample')} on {counted(self.config.gpus, 'GPU')}"
        notes = [f"{row.spec.name} failed: {row.error}" for row in self.rows if row.error]
        return html_table(title, ["", *(column.header for column in columns)], cells, notes)


class Simulation(PlanSimulation):
    """A predicted epoch (`figures`) beside the baseline's, and what it saves."""

    def _repr_html_(self) -> str:
        overall = self.figures.overall
        rows = [_epoch_row(group.name, group) for group in self.figures.groups]
        rows += [_epoch_row("all", overall), _epoch_row(f"baseline: {self.baseline_name}", self.baseline)]
        header = ["", "iterations", "s each", "GPU-days", "tokens/s/GPU", *PARTS]
        title = f"Predicted epoch on {counted(overall.num_gpus, 'GPU')}: {duration(overall.seconds)}"
        note = f"{self.saves.speedup:.2f} times as fast as the baseline"
        return html_table(title, header, rows, [note, *self.figures.notes])


def _lengths_table(lengths: LengthStats) -> str:
    cells = {
        name: f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for name, value in lengths.values().items()
    }
    return html_table("Lengths, in tokens", ["", *cells], [["", *cells.values()]])


def _metrics_table(metrics: PlanMetrics) -> str:
    named: list[tuple[str, Metrics]] = [*((group.name, group) for group in metrics.groups), ("all", metrics.overall)]
    named.append((f"baseline: {metrics.baseline.name}", metrics.baseline))
    rows = [[name, *(show(figures) for show in _FIGURES.values())] for name, figures in named]
    return html_table("Balance and padding (lower is better)", ["", *_FIGURES], rows)


def _epoch_row(name: str, figures: GroupFigures | OverallFigures) -> Sequence[str]:
    total = sum(figures.split.values())
    return [
        name,
        f"{figures.num_iterations:,}",
        amount(figures.iteration_seconds),
        amount(figures.gpu_days),
        f"{figures.tokens_per_gpu_second:,.0f}",
        *(f"{figures.split[part] / total:.1%}" if total else "-" for part in PARTS),
    ]
