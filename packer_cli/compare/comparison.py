"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows -> one process a row: plan, check, measure -> one table
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import WithJsonSchema

from packer_cli.compare.advice import advice, of_same_work, preferred
from packer_cli.compare.outcome import ComparedRow, compared_row
from packer_cli.compare.row_process import RowFigures, RowTask, row_figures, save_samples
from packer_cli.compare.rows import Row
from packer_cli.compare.savings import savings
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import size_rule
from packer_cli.engine.local import Failed, attempt, run_isolated
from packer_cli.engine.progress import progress_bar
from packer_cli.format.metrics import GroupChoice, SampleCounts
from packer_cli.format.records import in_json
from packer_cli.plan.core.samples import Samples, require_pieces
from packer_cli.plan.figures import LengthStats, length_stats
from packer_cli.simulate.figures import Simulator

PRELOAD = "packer_cli.compare.preload"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Plans of the same samples."""

    config: Annotated[PlanConfig, WithJsonSchema({"type": "object"})]
    """The plan options that the rows were derived from."""
    lengths: LengthStats
    """The distribution of the samples' lengths."""
    counts: SampleCounts
    """Counts of the samples under these options; rows with another `--overflow` may hold other samples."""
    rows: tuple[ComparedRow, ...]
    """The plans, in the order of the table."""
    predicted_with: Mapping[str, Any] | None = None
    """Origin of predicted times: a profile, or a model's shape and a data sheet; None without predictions."""
    attention_share: float | None = None
    """Share of the computing time that attention takes; None without a model of time."""
    group_choice: GroupChoice | None = None
    """Choice of automatic groups; None if they were named."""

    @property
    def best(self) -> ComparedRow | None:
        """The row to pack with: the shortest predicted epoch or, without predictions, the least padding and waiting.

        Without predictions, rows count that have the groups of the options: neither says anything of communication,
        nor of pipelines, and with pipelines there is no such row.
        """
        found = preferred(self.rows)
        if found is not None or any(group.pp_size > 1 for group in self.config.groups):
            return found
        given, able = self.config.groups, of_same_work(row for row in self.rows if row.may_be_taken)
        lost = [
            (row.overall.lost, number)
            for number, row in enumerate(self.rows)
            if row in able and row.overall and (row.kind == "strategy" or row.spec.config.groups == given)
        ]
        return self.rows[min(lost)[1]] if lost else None

    @property
    @in_json
    def advice(self) -> str | None:
        """Strategy to take; None if the rows are no strategies or no epoch is predicted."""
        strategies = [row for row in self.rows if row.kind == "strategy"]
        return advice(strategies, self.attention_share, self.config.trainer, is_auto=self.group_choice is not None)


def compare(
    samples: Samples,
    config: PlanConfig,
    rows: Sequence[Row],
    workers: int,
    simulator: Simulator | None = None,
    *,
    baseline: int | None = None,
    by_program: bool = False,
    draws: Sequence[Samples] = (),
) -> Comparison:
    """Plan every row; the result is the same for any number of workers, with the rows in the order given.

    Price: that of the plans, `workers` at a time, each with its own memory.

    Args:
        config: the options that the rows were derived from.
        simulator: predicts each row's epoch.
        baseline: index of the row over which the others save; none do if it fails.
        by_program: also prove the least number of packs, see `plan.figures.prove_by_program`.
        draws: of the samples, those to plan with each seed, from that of the options on; empty for all of them once.

    Raises:
        ConfigError: the simulator does not know an SP degree of the groups.
        RunError: there is nothing to plan, or a sample is too long under `--overflow error`.
    """
    if simulator is not None:
        for group in config.groups:
            simulator.model.cost.require_known(group.layout)
    # Errors in the samples concern every row, so they are raised here.
    cut = samples.cut(size_rule(config), config.seed)
    pieces = require_pieces(cut)
    counts = cut.counts(pieces)
    attention = None if simulator is None else round(simulator.attention_share(pieces), 6)
    del cut, pieces
    order = sorted(range(len(rows)), key=lambda i: not rows[i].may_take_longest)  # They start first.
    draws = draws or (samples,)
    outcomes: dict[tuple[int, int], RowFigures | Failed] = {}
    total = len(rows) * len(draws)
    with tempfile.TemporaryDirectory(prefix="hbpack-compare-") as name, progress_bar("Planning", unit="rows") as bar:
        bar(0, total)
        for number, draw in enumerate(draws):
            folder = Path(name) / str(number)
            save_samples(draw, folder)
            by = _tokens(samples) / max(1, _tokens(draw))
            tasks: dict[int, RowTask] = {}
            for i in order:
                plans, first = rows[i].candidates or (rows[i].plan,), outcomes.get((i, 0))
                if isinstance(first, Failed):
                    outcomes[i, number] = first
                    continue
                requests = [
                    each.request for each in (plans if first is None else plans[first.chosen : first.chosen + 1])
                ]
                tasks[i] = RowTask(
                    kind=type(samples),
                    requests=tuple(replace(each, seed=each.seed + number) for each in requests),
                    rule=size_rule(rows[i].config),
                    folder=folder,
                    weights=samples.weights,
                    simulator=simulator,
                    by_program=by_program,
                )
            elsewhere = [i for i in tasks if not rows[i].is_of_process]
            for place, outcome in run_isolated(row_figures, [tasks[i] for i in elsewhere], workers, [PRELOAD]):
                outcomes[elsewhere[place], number] = _scaled(outcome, by)
                left = [rows[i].name for i in elsewhere if (i, number) not in outcomes]
                bar(len(outcomes), total, ", ".join(left[:workers]))
            for i in (i for i in tasks if rows[i].is_of_process):
                outcomes[i, number] = _scaled(attempt(row_figures, tasks[i]), by)
                bar(len(outcomes), total)
    compared = [
        compared_row(row, *(outcomes[i, number] for number in range(len(draws)))) for i, row in enumerate(rows)
    ]
    naive = None if baseline is None else compared[baseline].simulation
    if naive is not None:
        compared = [
            replace(row, saves=savings(row.simulation.overall, naive.overall)) if row.simulation else row
            for row in compared
        ]
    return Comparison(
        predicted_with=simulator.model.origin if simulator else None,
        config=config,
        lengths=length_stats(samples.lengths),
        counts=counts,
        attention_share=attention,
        rows=tuple(compared),
    )


def _tokens(samples: Samples) -> int:
    return int((samples.lengths if samples.among is None else samples.lengths[samples.among]).sum(dtype=np.int64))


def _scaled(outcome: RowFigures | Failed, by: float) -> RowFigures | Failed:
    if isinstance(outcome, Failed) or outcome.simulation is None or by == 1:
        return outcome
    return replace(outcome, simulation=outcome.simulation.scaled(by))
