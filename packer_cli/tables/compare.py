"""Plans side by side, and predicted epochs, as tables; the columns of a comparison, by which rows are sorted, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.outcome import OF_LAYOUT, PlanSimulation, Savings, savings
from packer_cli.config.fields import GIVE
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.format.metrics import OverallMetrics
from packer_cli.plan.notes import overflow_notes
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import OverallFigures, TimeFigures, describe_origin
from packer_cli.sizes import amount, counted, duration, gpu_time, ratio
from packer_cli.tables.table import Table, cell


@dataclass(frozen=True)
class Column:
    """One figure of every row."""

    name: str
    """Name as `--sort` takes it."""
    header: str
    value: Callable[[ComparedRow], float | None]
    """The figure; None if a row has none."""
    show: Callable[[float], str]
    is_extra: bool = False
    """Whether a table may leave it out for want of room."""


def _overall(figure: Callable[[OverallMetrics], float | None]) -> Callable[[ComparedRow], float | None]:
    return lambda row: None if row.overall is None else figure(row.overall)


def _predicted(figure: Callable[[OverallFigures], float | None]) -> Callable[[ComparedRow], float | None]:
    return lambda row: None if row.simulation is None else figure(row.simulation.overall)


def _saved(figure: Callable[[Savings], float]) -> Callable[[ComparedRow], float | None]:
    return lambda row: None if row.saves is None else figure(row.saves)


_whole = "{:,.0f}".format
_one = "{:,.1f}".format
_three = "{:.3f}".format

PREDICTED = (
    Column("epoch", "epoch", _predicted(lambda epoch: epoch.seconds), duration),
    Column("gpu-days", "GPU-days", _predicted(lambda epoch: epoch.gpu_days), amount, is_extra=True),
)
"""Columns of a comparison with a time model."""

COSTED = (
    Column("cbr", "CBR", _overall(lambda metrics: metrics.cbr), ratio),
    Column("cbr-bound", "CBR bound", _overall(lambda metrics: metrics.cbr_bound), ratio, is_extra=True),
)
"""Columns of a comparison with a cost other than attention work."""

COLUMNS = (
    *PREDICTED,
    Column("packs", "packs", _overall(lambda metrics: metrics.num_packs), _whole, is_extra=True),
    Column(
        "over-bound",
        "over bound",
        # Where a step has a given number of micro-batches, fewer packs are not wanted.
        _overall(lambda each: None if each.mean_delay is not None else each.num_packs / each.packs_lower_bound - 1),
        lambda value: f"{value:.2%}" if value < 1 else f"{value:,.0%}",
        is_extra=True,
    ),
    Column("pr", "PR", _overall(lambda metrics: metrics.pr), ratio),
    Column("dbr", "DBR", _overall(lambda metrics: metrics.dbr), ratio, is_extra=True),
    Column("abr", "ABR", _overall(lambda metrics: metrics.abr), ratio),
    Column("abr-bound", "ABR bound", _overall(lambda metrics: metrics.abr_bound), ratio, is_extra=True),
    *COSTED,
    Column("cr", "CR", _overall(lambda metrics: metrics.cr), ratio),
    Column(
        "step-tokens",
        "tokens a step",
        _overall(lambda metrics: metrics.num_tokens / max(1, metrics.num_steps)),
        _whole,
        is_extra=True,
    ),
    Column("ave-t", "Ave-T", _overall(lambda metrics: metrics.ave_t), _whole, is_extra=True),
    Column("imbalance", "imbalance", _overall(lambda metrics: metrics.imbalance), _three),
    Column("displacement", "displaced", _overall(lambda metrics: metrics.mean_displacement), _one, is_extra=True),
    Column("delay", "delay", _overall(lambda metrics: metrics.mean_delay), "{:.2f}".format),
    Column("length-mix", "length mix", _overall(lambda metrics: metrics.length_mix_spread), _three),
    Column("source-mix", "source mix", _overall(lambda metrics: metrics.source_mix_spread), _three, is_extra=True),
    Column("time", "time, s", lambda row: row.seconds, lambda value: f"{value:.2f}" if value >= 1 else f"{value:.4f}"),
    Column("memory", "MiB", lambda row: row.peak_bytes, lambda value: f"{value / 2**20:,.1f}", is_extra=True),
)

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
    figures = [column.value(row) for row in rows]
    known = [(-figure if is_descending else figure, i) for i, figure in enumerate(figures) if figure is not None]
    return (*(rows[i] for _, i in sorted(known)), *(rows[i] for i, figure in enumerate(figures) if figure is None))


_OF_THE_MACHINE = ("time", "memory")
"""Columns that are not the same in every run."""
SAME_IN_EVERY_RUN = tuple(column for column in COLUMNS if column.name not in _OF_THE_MACHINE)


def comparison_table(comparison: Comparison, chosen: Sequence[Column] = SAME_IN_EVERY_RUN) -> Table:
    """Make a row for each plan, with the chosen columns that some row has."""
    rows, config = comparison.rows, comparison.config
    # A plan may know the sources of its samples when the others do not, which are planned from lengths.
    others = [row for row in rows if not row.is_own] or rows
    has_sources = any(row.overall.source_mix_spread for row in others if row.overall)
    columns = [
        column
        for column in chosen
        if any(column.value(row) is not None for row in rows) and (column.name != "source-mix" or has_sources)
    ]
    linear = rows[0].request.linear
    title = f"{_samples(comparison)} on {counted(config.gpus, 'GPU')}{f', cost 1,{linear}' if linear else ''}"
    if any(row.kind != "strategy" for row in rows):
        title += f"; packing {config.packing} and balance {config.balance} where a row names none"
    return _table(comparison, title, columns)


def strategies_table(comparison: Comparison) -> Table:
    """Tabulate the predicted epoch of each plan, its savings, and the parts of its time."""
    config, done = comparison.config, [row.simulation for row in comparison.rows if row.simulation]
    columns = [
        PREDICTED[0],
        Column("", "GPU-days saved", _saved(lambda saves: saves.gpu_days), amount),
        Column("", "speed-up", _saved(lambda saves: saves.speedup), "{:.2f}".format),
    ]
    for header, share in _shares([epoch.overall for epoch in done]).items():
        columns.append(Column("", header, _predicted(share), "{:.1%}".format))
    title = (
        f"Predicted epochs of {_samples(comparison)} on {counted(config.gpus, 'GPU')}; packing {config.packing} and "
        f"balance {config.balance} where a row names none"
    )
    notes = dict.fromkeys(note for epoch in done for note in epoch.notes)
    return _table(comparison, title, columns, [*notes, describe_origin(comparison.predicted_with or {})])


def _samples(comparison: Comparison) -> str:
    counts, groups = comparison.counts, ",".join(map(str, comparison.config.groups))
    return f"{counted(counts.samples, counts.unit)}, {counted(counts.tokens, 'token')}; groups {groups}"


def _table(comparison: Comparison, title: str, columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Tabulate the plans, with notes on single rows, on what the plans leave out, and others."""
    rows, config = comparison.rows, comparison.config
    names = [f"{row.name}{' *' if row.cut_off else ''}{'' if row.fits else ' !'}" for row in rows]
    longest = [f"@longest: {config.groups[-1]} alone"] if any(row.name.endswith("@longest") for row in rows) else []
    return Table(
        title=title,
        header=("", *(column.header for column in columns)),
        rows=tuple((name, *(_cell(row, column) for column in columns)) for name, row in zip(names, rows, strict=True)),
        marked=next((place for place, row in enumerate(rows) if row.is_own), None),
        notes=(
            *(note for row in rows for note in _row_notes(row)),
            *overflow_notes(comparison.counts, config.groups[-1].capacity, config.overflow, config.max_path_tokens),
            *notes,
            *longest,
        ),
    )


def _cell(row: ComparedRow, column: Column) -> str:
    """Show the figure or, of several seeds, their mean and standard deviation."""
    value = column.value(row)
    known = [each for each in map(column.value, row.repeats) if each is not None]
    if value is None or len(known) < 2:
        return cell(value, column.show)
    return f"{column.show(value)} ± {column.show(float(np.std(known, ddof=1)))}"


_LEAST_WORK = 0.001


def _row_notes(row: ComparedRow) -> Iterator[str]:
    searched = row.is_searched and row.overall is not None
    layout = ", ".join(f"--{name} {row.options[name]}" for name in OF_LAYOUT if name in row.options)
    if row.note or searched:
        yield f"{row.name}: {'; '.join(filter(None, (row.note, f'here {layout}' if searched else '')))}"
    if row.work_left_out and row.work_left_out > _LEAST_WORK:
        yield f"{row.name}: leaves out {row.work_left_out:.1%} of the attention work of the others, as it cuts samples"
    if not row.fits and row.simulation:
        yield from (f"{row.name}: ! {warning}" for warning in row.simulation.warnings)
    if row.error is not None:
        yield f"{row.name}: failed: {row.error}"
    elif row.cut_off:
        yield (
            f"{row.name}: * stopped at its time limit; its packs are the best so far, and another run may find others"
        )


def simulation_table(result: PlanSimulation) -> Table:
    """Make a row each for the groups, all packs and the baseline; the epoch's time, and notes."""
    overall, baseline = result.overall, result.baseline
    named: list[tuple[str, TimeFigures]] = [(group.name, group) for group in result.groups]
    best = result.naive_at_best
    named += [("all", overall), ("naive", best), ("baseline", baseline)]
    notes = [
        (
            f"An epoch takes {duration(overall.seconds)}: {counted(overall.num_steps, 'step')} of "
            f"{amount(overall.step_seconds)} s, {gpu_time(overall.gpu_days)}"
        ),
        f"naive: {best.name}; it takes {duration(best.seconds)}: {_in_words(result.saves_over_naive)}",
        (
            f"baseline: {baseline.name}; it takes {duration(baseline.seconds)}, {gpu_time(baseline.gpu_days)}: "
            f"{_in_words(result.saves)}"
        ),
    ]
    if result.padded:
        named.append(("padded", result.padded))
        notes.append(
            "padded: random batches, as large as fit, as in a trainer that does not pack; they take "
            f"{duration(result.padded.seconds)}: {_in_words(savings(overall, result.padded))}"
        )
    shares = _shares([figures for _, figures in named])
    return Table(
        title=f"Predicted epoch on {counted(overall.num_gpus, 'GPU')}, and where their time goes",
        header=("", "iterations", "s each", "tokens/s a GPU", *shares),
        rows=tuple(
            (
                name,
                f"{figures.num_iterations:,}",
                amount(figures.iteration_seconds),
                f"{figures.tokens_per_gpu_second:,.0f}",
                *(cell(share(figures), "{:.1%}".format, "-") for share in shares.values()),
            )
            for name, figures in named
        ),
        notes=(*notes, *result.notes, describe_origin(result.predicted_with)),
    )


def _in_words(saves: Savings) -> str:
    time = gpu_time(abs(saves.gpu_days))
    if saves.gpu_days < 0:
        return f"{time} are lost"
    return f"{time} ({saves.share:.0%}) are saved, {saves.speedup:.2f} times as fast"


_HEADERS = {"communication": "comm.", "constant": "fixed", "steps": "step extra"}
_FIRST = ("compute", "communication", "waiting")
"""Parts that always have a column; the others have one only if some row has them."""


def _shares(epochs: Iterable[TimeFigures]) -> dict[str, Callable[[TimeFigures], float | None]]:
    """Choose the parts of time that get a column: header -> share of the GPUs' time in an epoch."""
    splits = [epoch.split for epoch in epochs]
    return {
        _HEADERS.get(name, name): partial(_share, name)
        for name in PARTS
        if name in _FIRST or any(split[name] >= 5e-4 * sum(split.values()) > 0 for split in splits)
    }


def _share(name: str, epoch: TimeFigures) -> float | None:
    total = sum(epoch.split.values())
    return epoch.split[name] / total if total else None
