"""The table of `hbpack compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from packer_cli.cli.console import print_note, print_table, say_next
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.columns import Column
from packer_cli.compare.row_figures import RowFigures
from packer_cli.config import PlanConfig
from packer_cli.config.effects import without_effect
from packer_cli.config.groups import used_groups
from packer_cli.config.messages import option_name
from packer_cli.plan.core.pieces import overflow_notes
from packer_cli.sizes import counted, duration, ratio

OWN = "(yours)"


def print_comparison(comparison: Comparison, chosen: Sequence[Column]) -> None:
    """Print the table on stdout with the chosen columns that some row has, and notes on single rows below it."""
    rows, lengths, config = comparison.rows, comparison.lengths, comparison.config
    done = [row.figures for row in rows if row.figures]
    columns = [
        column
        for column in chosen
        if any(column.value(row) is not None for row in done) and (column.name != "source-mix" or _has_sources(done))
    ]
    cells = [[row_name(row), *(_cell(row, column) for column in columns)] for row in rows]
    linear = rows[0].spec.request.linear
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


def row_name(row: ComparedRow) -> str:
    """A row's name, marked if it is the plan that the options ask for, or was stopped."""
    own = f" {OWN}" if row.spec.is_own else ""
    return f"{row.spec.name}{own}{' *' if row.figures and row.figures.cut_off else ''}"


def _cell(row: ComparedRow, column: Column) -> str:
    value = column.value(row.figures) if row.figures else None
    return "" if value is None else column.show(value)


def print_notes(comparison: Comparison, others: Iterable[str] = ()) -> None:
    """Print the notes below a table: on its rows, on what the plans leave out, and the others."""
    rows, config = comparison.rows, comparison.config
    for row in rows:
        for note in _row_notes(row):
            print_note(f"{row.spec.name}: {note}")
    for note in (*overflow_notes(comparison.counts, config.groups[-1].capacity, config.overflow), *others):
        print_note(note)
    if any(row.spec.is_own for row in rows):
        print_note(f"{OWN}: what your options plan")
    if any(row.spec.name.endswith("@longest") for row in rows):
        print_note(f"@longest: {config.groups[-1]} alone")
    if comparison.advice:
        click.echo()
        print_note(comparison.advice)


def say_best(comparison: Comparison) -> None:
    """Print the last line: the row to pack with, and how."""
    best = comparison.best
    if best is None or best.figures is None:
        return
    pack = f"hbpack pack with the same options{_changes(comparison, best.spec.config)}"
    simulation, name = best.figures.simulation, best.spec.name
    if simulation:
        say_next(f"Of these plans, take {name}: {duration(simulation.overall.seconds)} an epoch", pack)
    else:
        times = "compare predicted epochs with --model CONFIG.JSON --gpu NAME"
        say_next(f"{name} waits least, for {ratio(best.figures.metrics.overall.waiting)} of the work", times, pack)


def _changes(comparison: Comparison, best: PlanConfig) -> str:
    """The options that differ from those that were given, and those that have no effect then."""
    own, was_auto = comparison.config, comparison.group_choice is not None
    unused = set(without_effect(best, was_auto=was_auto))
    if best.strategy != own.strategy:
        changed = {"strategy": best.strategy}
        unused |= own.not_for(best.strategy)
        groups = used_groups(own.groups, best.planner)
        if was_auto and best.planner.plans_streams:  # By itself, its window is the longest sample.
            changed["groups"] = ",".join(map(str, groups))
            unused |= without_effect(best).keys()
        elif not was_auto and groups != own.groups:
            changed["groups"] = ",".join(map(str, groups))
    else:
        before, after = (
            {"groups": ",".join(map(str, each.groups)), "packing": each.packing, "balance": each.balance}
            for each in (own, best)
        )
        changed = {option: value for option, value in after.items() if value != before[option]}
    unused &= own.model_fields_set - changed.keys()
    text = f" and {' '.join(f'{option_name(name)} {value}' for name, value in changed.items())}" if changed else ""
    return f"{text}, without {' '.join(map(option_name, sorted(unused)))}" if unused else text


def _row_notes(row: ComparedRow) -> list[str]:
    notes = [row.spec.note] if row.spec.note else []
    if row.figures is None:
        notes.append(f"failed: {row.error}")
    elif row.figures.cut_off:
        notes.append("* stopped at its time limit; its packs are the best so far, and another run may find others")
    return notes
