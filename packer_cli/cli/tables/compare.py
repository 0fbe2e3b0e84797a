"""The table of `hbpack compare`, and the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click

from packer_cli.cli.console import print_table, ratio
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.row_figures import RowFigures
from packer_cli.config.auto_groups import GIVE
from packer_cli.errors import ConfigError
from packer_cli.format.metrics import OverallMetrics
from packer_cli.plan.pieces import overflow_notes
from packer_cli.simulate.figures import OverallFigures
from packer_cli.sizes import counted


@dataclass(frozen=True)
class Column:
    """One figure of every row."""

    name: str
    """As `--sort` takes it."""
    header: str
    value: Callable[[RowFigures], float | None]
    """The figure; None if a row has none."""
    show: Callable[[float], str]


def _overall(figure: Callable[[OverallMetrics], float | None]) -> Callable[[RowFigures], float | None]:
    return lambda row: figure(row.metrics.overall)


def _predicted(figure: Callable[[OverallFigures], float]) -> Callable[[RowFigures], float | None]:
    return lambda row: None if row.simulation is None else figure(row.simulation.overall)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def amount(value: float) -> str:
    """Format an amount for a table: three significant digits, and all digits before the point.

    >>> amount(0.0123), amount(99.96), amount(12345.6)
    ('0.0123', '100', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


PREDICTED = (
    Column("epoch", "epoch, h", _predicted(lambda epoch: epoch.seconds), lambda value: amount(value / 3600)),
    Column("gpu-days", "GPU-days", _predicted(lambda epoch: epoch.gpu_days), amount),
)
"""Columns of a comparison with a time model."""

COSTED = (
    Column("cbr", "CBR", _overall(lambda metrics: metrics.cbr), ratio),
    Column("cbr-bound", "CBR bound", _overall(lambda metrics: metrics.cbr_bound), ratio),
)
"""Columns of a comparison with a cost other than attention work."""

COLUMNS = (
    Column("packs", "packs", _overall(lambda metrics: metrics.num_packs), _whole),
    Column(
        "over-bound",
        "over bound",
        _overall(lambda metrics: metrics.num_packs / metrics.packs_lower_bound - 1),
        lambda value: f"{value:.2%}" if value < 1 else f"{value:,.0%}",
    ),
    Column("pr", "PR", _overall(lambda metrics: metrics.pr), ratio),
    Column("dbr", "DBR", _overall(lambda metrics: metrics.dbr), ratio),
    Column("abr", "ABR", _overall(lambda metrics: metrics.abr), ratio),
    Column("abr-bound", "ABR bound", _overall(lambda metrics: metrics.abr_bound), ratio),
    *COSTED,
    Column("cr", "CR", _overall(lambda metrics: metrics.cr), ratio),
    Column("ave-t", "Ave-T", _overall(lambda metrics: metrics.ave_t), _whole),
    Column("imbalance", "imbalance", _overall(lambda metrics: metrics.imbalance), _three),
    Column("displacement", "displaced", _overall(lambda metrics: metrics.mean_displacement), _one),
    Column("delay", "delay", _overall(lambda metrics: metrics.mean_delay), lambda value: f"{value:.2f}"),
    Column("length-mix", "length mix", _overall(lambda metrics: metrics.length_mix_spread), _three),
    Column("source-mix", "source mix", _overall(lambda metrics: metrics.source_mix_spread), _three),
    Column("time", "time, s", lambda row: row.seconds, lambda value: f"{value:.2f}" if value >= 1 else f"{value:.4f}"),
    Column("memory", "MiB", lambda row: row.peak_bytes, lambda value: f"{value / 2**20:,.1f}"),
    *PREDICTED,
)

_COLUMN_OF = {column.name: column for column in COLUMNS}


def parse_sort(text: str, *, has_model: bool = True, has_cost: bool = True) -> tuple[Column, bool]:
    """Parse `COLUMN` or `-COLUMN` into (column, whether the order is descending).

    Args:
        has_model: whether epochs are predicted.
        has_cost: whether plans are balanced by a cost other than attention work.

    Raises:
        ConfigError: there is no such column, or it needs a time model or a cost.
    """
    name = text.removeprefix("-").lower().replace("_", "-")
    if name not in _COLUMN_OF:
        raise ConfigError(f"--sort: there is no column {text!r}; columns: {', '.join(_COLUMN_OF)}")
    if not has_model and _COLUMN_OF[name] in PREDICTED:
        raise ConfigError(f"--sort {text} needs {GIVE}")
    if not has_cost and _COLUMN_OF[name] in COSTED:
        raise ConfigError(f"--sort {text} needs a --cost, such as 1,24576; without one it is ABR")
    return _COLUMN_OF[name], text.startswith("-")


def sort_rows(rows: Sequence[ComparedRow], order: tuple[Column, bool] | None) -> tuple[ComparedRow, ...]:
    """Sort rows by a column, stably; rows without a figure come last."""
    if order is None:
        return tuple(rows)
    column, is_descending = order
    figures = [column.value(row.figures) if row.figures else None for row in rows]
    known = [(-figure if is_descending else figure, i) for i, figure in enumerate(figures) if figure is not None]
    return (*(rows[i] for _, i in sorted(known)), *(rows[i] for i, figure in enumerate(figures) if figure is None))


def print_comparison(comparison: Comparison) -> None:
    """Print the table on stdout, and notes on single rows below it."""
    rows, lengths, config = comparison.rows, comparison.lengths, comparison.config
    done = [row.figures for row in rows if row.figures]
    columns = [
        column
        for column in COLUMNS
        if any(column.value(row) is not None for row in done) and (column.name != "source-mix" or _has_sources(done))
    ]
    cells = [[_name(row), *(_cell(row, column) for column in columns)] for row in rows]
    linear = rows[0].spec.rules.linear
    cost = f", cost 1,{linear}" if linear else ""
    title = (
        f"{counted(lengths.num_samples, 'sample')}, {counted(lengths.num_tokens, 'token')}; groups "
        f"{','.join(map(str, config.groups))} on {counted(config.gpus, 'GPU')}{cost}"
    )
    if any(row.spec.kind != "strategy" for row in rows):
        title += f"; packing {config.packing} and balance {config.balance} where a row names none"
    print_table(title, ["", *(column.header for column in columns)], cells, is_dense=True)
    print_notes(comparison)


def _has_sources(rows: Sequence[RowFigures]) -> bool:
    """Whether the rows have several sources; otherwise every spread is 0."""
    return any(row.metrics.overall.source_mix_spread for row in rows)


def _name(row: ComparedRow) -> str:
    return f"{row.spec.name} *" if row.figures and row.figures.cut_off else row.spec.name


def _cell(row: ComparedRow, column: Column) -> str:
    value = column.value(row.figures) if row.figures else None
    return "-" if value is None else column.show(value)


def print_notes(comparison: Comparison, others: Iterable[str] = ()) -> None:
    """Print the notes below a table: on its rows, on what the plans leave out, and the others."""
    rows, config = comparison.rows, comparison.config
    for row in rows:
        for note in _row_notes(row):
            click.echo(f"  {row.spec.name}: {note}")
    for note in (*overflow_notes(comparison.counts, config.groups[-1].capacity, config.overflow), *others):
        click.echo(f"  {note}")
    if any(row.spec.name.endswith("@longest") for row in rows):
        click.echo(f"  @longest: {config.groups[-1]} alone")
    if comparison.advice:
        click.echo(f"\n  {comparison.advice}")


def _row_notes(row: ComparedRow) -> list[str]:
    notes = [row.spec.note] if row.spec.note else []
    if row.figures is None:
        notes.append(f"failed: {row.error}")
    elif row.figures.cut_off:
        notes.append("* stopped at its time limit; its packs are the best so far, and another run may find others")
    return notes
