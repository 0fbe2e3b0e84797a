"""The tables of `hbpack simulate`."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.cli.console import print_note, print_table
from packer_cli.cli.tables.compare import print_notes, row_name
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.savings import PlanSimulation, Savings, savings
from packer_cli.plan.figures import BASELINE_NAME
from packer_cli.simulate.figures import GroupFigures, OverallFigures, describe_origin
from packer_cli.simulate.split import headers, shares, shown_parts
from packer_cli.sizes import amount, counted, duration, gpu_time


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
    rows, lengths, config = comparison.rows, comparison.lengths, comparison.config
    done = [row.figures.simulation for row in rows if row.figures and row.figures.simulation]
    parts = shown_parts([epoch.overall.split for epoch in done])
    header = ["", "epoch, h", "GPU-days saved", "speed-up", *headers(parts)]
    title = (
        f"Predicted epochs of {counted(lengths.num_samples, 'sample')}, "
        f"{counted(lengths.num_tokens, 'token')}; groups "
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
        amount(epoch.seconds / 3600),
        amount(saves.gpu_days) if saves else "",
        f"{saves.speedup:.2f}" if saves else "",
        *shares(epoch.split, parts),
    ]


def _saved(saves: Savings) -> str:
    time = gpu_time(abs(saves.gpu_days))
    if saves.gpu_days < 0:
        return f"{time} are lost"
    return f"{time} ({saves.share:.0%}) are saved, {saves.speedup:.2f} times as fast"
