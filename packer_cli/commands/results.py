"""The results of the API: those of the stages, which a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.commands.report import Report as StageReport
from packer_cli.commands.stats import Stats as StageStats
from packer_cli.compare import Comparison as ComparedPlans
from packer_cli.compare.savings import PlanSimulation
from packer_cli.html import html_table
from packer_cli.report.tables import Table, comparison_table, figures_table, lengths_table
from packer_cli.simulate.epoch import headers, shares, shown_parts
from packer_cli.simulate.figures import GroupFigures, OverallFigures
from packer_cli.sizes import amount, counted, duration


class Stats(StageStats):
    """The figures of lengths and of a plan. `values()` gives them as JSON values, as `hbpack stats --json` does."""

    def _repr_html_(self) -> str:
        tables = [lengths_table(self.lengths)] if self.lengths else []
        tables += [figures_table(self.plan.metrics)] if self.plan else []
        return "\n".join(map(_html, tables))


class Comparison(ComparedPlans):
    """Plans of the same samples: `rows`, each with its `figures`, or the `error` for which it has none."""

    def _repr_html_(self) -> str:
        return _html(comparison_table(self))


class Simulation(PlanSimulation):
    """A predicted epoch (`figures`) beside the baseline's, and what it saves."""

    def _repr_html_(self) -> str:
        overall = self.figures.overall
        named: list[tuple[str, GroupFigures | OverallFigures]] = [(group.name, group) for group in self.figures.groups]
        named += [("all packs", overall), (f"baseline: {self.baseline_name}", self.baseline)]
        parts = shown_parts([figures.split for _, figures in named])
        rows = [_epoch_row(name, figures, parts) for name, figures in named]
        header = ["", "iterations", "s each", "GPU-days", "tokens/s a GPU", *headers(parts)]
        title = f"Predicted epoch on {counted(overall.num_gpus, 'GPU')}: {duration(overall.seconds)}"
        note = f"{self.saves.speedup:.2f} times as fast as the baseline"
        return html_table(title, header, rows, [note, *self.figures.notes])


class Report(StageReport):
    """What `hbpack report` shows: `charts` by name, which a notebook draws one by one, and what to try next."""

    def __repr__(self) -> str:
        return f"<Report on {self.page.title}: {counted(len(self.charts), 'chart')}: {', '.join(self.charts)}>"

    def _repr_html_(self) -> str:
        rows = [(tile.label, tile.value, tile.text) for tile in self.page.tiles]
        notes = [*self.next_steps, f"charts: {', '.join(self.charts)}"]
        return html_table(self.page.title, ["", "", ""], rows, notes)


def _html(table: Table) -> str:
    return html_table(table.title, table.header, table.rows, table.notes, table.marked)


def _epoch_row(name: str, figures: GroupFigures | OverallFigures, parts: Sequence[str]) -> list[str]:
    return [
        name,
        f"{figures.num_iterations:,}",
        amount(figures.iteration_seconds),
        amount(figures.gpu_days),
        f"{figures.tokens_per_gpu_second:,.0f}",
        *shares(figures.split, parts),
    ]
