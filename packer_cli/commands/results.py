"""The results of the API: those of the stages, which a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packer_cli.commands.report import Report as StageReport
from packer_cli.compare import Comparison as ComparedPlans
from packer_cli.compare.savings import PlanSimulation
from packer_cli.format.records import json_values
from packer_cli.plan.figures import Stats as StageStats
from packer_cli.sizes import counted
from packer_cli.tables.compare import comparison_table, simulation_table
from packer_cli.tables.html import tables_html
from packer_cli.tables.stats import stats_tables
from packer_cli.tables.table import Table


class _Result:
    def values(self) -> dict[str, Any]:
        """JSON values, as the command prints them with `--json`."""
        return dict(json_values(self))

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return tables_html(self._tables())


class Stats(_Result, StageStats):
    """The figures of lengths and of a plan."""

    def _tables(self) -> Iterable[Table]:
        return stats_tables(self)


class Comparison(_Result, ComparedPlans):
    """Plans of the same samples: `rows`, each with its figures, or the `error` for which it has none."""

    def _tables(self) -> Iterable[Table]:
        return [comparison_table(self)]


class Simulation(_Result, PlanSimulation):
    """A predicted epoch beside the baseline's, and what it saves."""

    def _tables(self) -> Iterable[Table]:
        return [simulation_table(self)]


class Report(_Result, StageReport):
    """What `hbpack report` shows: `charts` by name, which a notebook draws one by one, and what to try next."""

    def __repr__(self) -> str:
        return f"<Report on {self.page.title}: {counted(len(self.charts), 'chart')}: {', '.join(self.charts)}>"

    def _tables(self) -> Iterable[Table]:
        rows = tuple((tile.label, tile.value, tile.text) for tile in self.page.tiles)
        notes = (*self.next_steps, f"charts: {', '.join(self.charts)}")
        return [Table(title=self.page.title, header=("", "", ""), rows=rows, notes=notes)]
