"""The table of `hbpack compare`, and the order of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from packer_cli.cli.console import print_table
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.columns import COLUMNS, COSTED, PREDICTED, Column
from packer_cli.compare.row_figures import RowFigures
from packer_cli.config.auto_groups import GIVE
from packer_cli.errors import ConfigError
from packer_cli.plan.pieces import overflow_notes
from packer_cli.sizes import counted

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
