"""The results of commands that a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Iterable

from packer_cli.compare import Comparison as ComparedPlans
from packer_cli.compare.outcome import PlanSimulation
from packer_cli.plan.figures import Stats as StageStats
from packer_cli.tables.compare import comparison_table, simulation_table
from packer_cli.tables.stats import stats_tables
from packer_cli.tables.table import Result, Table


class Stats(Result, StageStats):
    """The figures of lengths and of a plan."""

    def _tables(self) -> Iterable[Table]:
        return stats_tables(self)


class Comparison(Result, ComparedPlans):
    """Plans of the same samples: `rows`, each with its figures, or the `error` for which it has none."""

    def _tables(self) -> Iterable[Table]:
        return [comparison_table(self)]


class Simulation(Result, PlanSimulation):
    """A predicted epoch beside the baseline's, and what it saves."""

    def _tables(self) -> Iterable[Table]:
        return [simulation_table(self)]
