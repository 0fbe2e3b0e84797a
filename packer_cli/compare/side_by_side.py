"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows -> one process a row: plan, check, measure -> one table
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer_cli.compare.row_figures import RowTask, row_figures, save_samples
from packer_cli.compare.rows import Row
from packer_cli.config import PlanConfig
from packer_cli.engine.isolated import Failed, run_isolated
from packer_cli.engine.progress import progress_bar
from packer_cli.plan.figures import length_stats
from packer_cli.plan.samples import Samples, pieces_to_plan, sample_counts
from packer_cli.simulate.figures import Simulator
from packer_cli.simulate.slots import refuse_unknown_degrees

PRELOAD = "packer_cli.compare.preload"


def compare(
    samples: Samples,
    config: PlanConfig,
    rows: Sequence[Row],
    workers: int,
    simulator: Simulator | None = None,
    *,
    by_program: bool = False,
) -> dict[str, Any]:
    """JSON values: `config`, `lengths`, `counts`, and `rows` in the order given; the same for any number of workers.

    `counts` are for the given options; rows with another `--overflow` may hold other samples.

    A row has `name`, `kind`, `note`, the `options` in which rows differ, and `error`; unless it failed, it also has
    the values of `row_figures`. Price: that of the plans, `workers` at a time, each with its own memory.

    Args:
        config: the options that the rows were derived from.
        simulator: predicts each row's epoch, as the row's `simulation`.
        by_program: also prove the least number of packs, see `plan.figures.prove_by_program`.

    Raises:
        ConfigError: the simulator does not know an SP degree of the groups.
        RunError: there is nothing to plan, or a sample is too long under `--overflow error`.
    """
    if simulator is not None:
        refuse_unknown_degrees((group.sp_size for group in config.groups), simulator.model)
    # Errors in the samples concern every row, so they are raised here.
    capacity = config.groups[-1].capacity
    pieces = pieces_to_plan(samples, capacity, config.overflow, config.seed)
    counts = sample_counts(samples.lengths, samples.chosen(config.seed), pieces, capacity, config.overflow)
    del pieces
    # Rows with a time limit may take longest, so they start first.
    order = sorted(range(len(rows)), key=lambda i: not rows[i].has_time_limit)
    outcomes: dict[int, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hbpack-compare-") as name, progress_bar("Planning", unit="rows") as bar:
        folder = Path(name)
        save_samples(samples, folder)
        tasks = [
            RowTask(
                config=rows[i].config,
                folder=folder,
                weights=samples.weights,
                simulator=simulator,
                by_program=by_program,
            )
            for i in order
        ]
        bar(0, len(rows))
        for number, outcome in run_isolated(row_figures, tasks, workers, [PRELOAD]):
            outcomes[order[number]] = outcome
            bar(len(outcomes), len(rows))
    return {
        **({"predicted_with": dict(simulator.model.origin)} if simulator else {}),
        "config": config.model_dump(mode="json"),
        "lengths": length_stats(samples.lengths),
        "counts": counts,
        "rows": [_row(row, outcomes[i]) for i, row in enumerate(rows)],
    }


def _row(row: Row, outcome: Any) -> dict[str, Any]:
    about = {
        "name": row.name,
        "kind": row.kind,
        "note": row.note,
        "options": {
            "groups": ",".join(map(str, row.config.groups)),
            "packing": row.config.packing,
            "balance": row.config.balance,
            "overflow": row.config.overflow,
        },
    }
    if isinstance(outcome, Failed):
        return {**about, "error": outcome.reason}
    return {**about, "error": None, **outcome}
