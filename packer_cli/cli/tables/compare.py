"""The table of `hbpack compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from packer_cli.cli.console import print_table
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.columns import COLUMNS, Column
from packer_cli.compare.row_figures import RowFigures
from packer_cli.plan.pieces import overflow_notes
from packer_cli.sizes import counted


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
