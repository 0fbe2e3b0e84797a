"""The tables of `hbpack compare` and `hbpack simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from packer_cli.cli.console import print_note, print_table, say_next
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.columns import Column
from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.savings import PlanSimulation, Savings, savings
from packer_cli.config import PlanConfig
from packer_cli.config.effects import without_effect
from packer_cli.config.groups import used_groups
from packer_cli.config.messages import option_name
from packer_cli.plan.core.pieces import overflow_notes
from packer_cli.plan.figures import BASELINE_NAME
from packer_cli.simulate.epoch import headers, shares, shown_parts
from packer_cli.simulate.figures import GroupFigures, OverallFigures, describe_origin
from packer_cli.sizes import amount, counted, duration, gpu_time, ratio

OWN = "(yours)"


def print_comparison(comparison: Comparison, chosen: Sequence[Column]) -> None:
    """Print the table on stdout with the chosen columns that some row has, and notes on single rows below it."""
    rows, counts, config = comparison.rows, comparison.counts, comparison.config
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
        f"{counted(counts.samples, 'sample')}, {counted(counts.tokens, 'token')}; groups "
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
        if any(group.pp_size > 1 for group in comparison.config.groups):
            say_next("What pipelines wait for is known with a model", "hbpack compare with --model and --gpu")
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


def print_plan_simulation(result: PlanSimulation) -> None:
    """Print one row each for the groups, all packs and the baseline; then the epoch's time, and notes."""
    overall, baseline = result.figures.overall, result.baseline
    named: list[tuple[str, GroupFigures | OverallFigures]] = [(group.name, group) for group in result.figures.groups]
    named += [("all", overall), ("baseline", baseline)]
    named += [("padded", result.padded)] if result.padded else []
    parts = shown_parts([figures.split for _, figures in named])
    rows = [
        [
            name,
            f"{figures.num_iterations:,}",
            amount(figures.iteration_seconds),
            f"{figures.tokens_per_gpu_second:,.0f}",
            *shares(figures.split, parts),
        ]
        for name, figures in named
    ]
    header = ["", "iterations", "s each", "tokens/s a GPU", *headers(parts)]
    title = f"Predicted epoch on {counted(overall.num_gpus, 'GPU')}, and where their time goes"
    print_table(title, header, rows, is_dense=True)
    print_note(
        f"An epoch takes {duration(overall.seconds)}: {counted(overall.num_steps, 'step')} of "
        f"{amount(overall.step_seconds)} s, {gpu_time(overall.gpu_days)}"
    )
    print_note(
        f"baseline: {result.baseline_name}; it takes {duration(baseline.seconds)}, {gpu_time(baseline.gpu_days)}: "
        f"{_saved(result.saves)}"
    )
    if result.padded:
        print_note(
            "padded: random batches, as large as fit, as in a trainer that does not pack; they take "
            f"{duration(result.padded.seconds)}: {_saved(savings(overall, result.padded))}"
        )
    for note in result.figures.notes:
        print_note(note)
    print_note(describe_origin(result.predicted_with))


def print_prediction(result: PlanSimulation) -> None:
    """Print an epoch's predicted time and the speed-up, in a line."""
    overall = result.figures.overall
    name = "naive packing" if result.baseline_name == BASELINE_NAME else result.baseline_name
    others = [(name, result.baseline)]
    others += [("padded batches", result.padded)] if result.padded else []
    ratios = ", ".join(
        f"{savings(overall, other).speedup:.2f} times as fast as {name} ({duration(other.seconds)})"
        for name, other in others
    )
    print_note(f"predicted epoch on {counted(overall.num_gpus, 'GPU')}: {duration(overall.seconds)}; {ratios}")


def print_strategies(comparison: Comparison) -> None:
    """Print one row per strategy, and notes on single rows below."""
    rows, counts, config = comparison.rows, comparison.counts, comparison.config
    done = [row.figures.simulation for row in rows if row.figures and row.figures.simulation]
    parts = shown_parts([epoch.overall.split for epoch in done])
    header = ["", "epoch", "GPU-days saved", "speed-up", *headers(parts)]
    title = (
        f"Predicted epochs of {counted(counts.samples, 'sample')}, {counted(counts.tokens, 'token')}; groups "
        f"{','.join(map(str, config.groups))} on {counted(config.gpus, 'GPU')}; packing {config.packing} and balance "
        f"{config.balance} where a row names none"
    )
    print_table(title, header, [_strategy(row, parts, len(header)) for row in rows], is_dense=True)
    print_notes(comparison, dict.fromkeys(note for epoch in done for note in epoch.notes))
    print_note(describe_origin(comparison.predicted_with or {}))


def _strategy(row: ComparedRow, parts: Sequence[str], num_cells: int) -> list[str]:
    if row.figures is None or row.figures.simulation is None:
        return [row_name(row), *[""] * (num_cells - 1)]
    epoch, saves = row.figures.simulation.overall, row.saves
    return [
        row_name(row),
        duration(epoch.seconds),
        amount(saves.gpu_days) if saves else "",
        f"{saves.speedup:.2f}" if saves else "",
        *shares(epoch.split, parts),
    ]


def _saved(saves: Savings) -> str:
    time = gpu_time(abs(saves.gpu_days))
    if saves.gpu_days < 0:
        return f"{time} are lost"
    return f"{time} ({saves.share:.0%}) are saved, {saves.speedup:.2f} times as fast"
