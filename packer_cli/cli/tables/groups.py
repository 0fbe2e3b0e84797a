"""The tables of `hbpack groups`: candidates as in HBP's tables 18 and 19, the choice, and its alternatives."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.console import print_note, print_table
from packer_cli.format.metrics import AlternativeGroups, GroupChoice
from packer_cli.groups.choice import Choice
from packer_cli.groups.settings import Setting
from packer_cli.plan.strategies.protocol import LayoutChoice
from packer_cli.sizes import counted, format_tokens, four_digits

_GIB = 2**30


def candidates(choice: Choice) -> list[dict[str, Any]]:
    """JSON values, one row per length and SP degree; `mark` is `best`, `best of its length`, `chosen` or empty."""
    fastest = min(
        (best for best in map(choice.best, choice.settings) if best is not None),
        key=lambda setting: setting.seconds_per_token or 0.0,
    )
    return [
        {
            "length": setting.group.capacity,
            "sp_size": setting.group.sp_size,
            "checkpoint_layers": setting.group.checkpoint_layers,
            "seconds": setting.seconds,
            "seconds_per_token": setting.seconds_per_token,
            "memory_bytes": setting.memory_bytes,
            "fits": setting.seconds is not None,
            "measured": setting.is_measured,
            "mark": _mark(choice, setting, fastest),
        }
        for length in sorted(choice.settings)
        for setting in choice.settings[length]
    ]


def _mark(choice: Choice, setting: Setting, fastest: Setting) -> str:
    marks = []
    if setting is fastest:
        marks.append("best")
    elif setting is choice.best(setting.group.capacity):
        marks.append("best of its length")
    if setting.group in choice.groups:
        marks.append("chosen")
    return ", ".join(marks)


def print_choice(choice: Choice, record: GroupChoice) -> None:
    """Print the candidates, the choice and its alternatives on stdout."""
    rows = candidates(choice)
    title = f"{counted(record.samples, 'sample')}, {counted(record.tokens, 'token')}, the longest {record.longest:,}"
    header = ["length", "SP", "layers", "iteration, s", "s a million tokens", "memory, GiB", ""]
    print_table(title, header, [_cells(row) for row in rows], is_dense=True)
    print_note(
        "layers: checkpointed layers, the fewest that fit; iteration: one row on each SP group; a million tokens on "
        f"all {counted(choice.num_gpus, 'GPU')}{_origin(rows)}"
    )
    for note in record.notes:
        print_note(note)
    click.echo(f"\n  --groups {record.groups}\n")
    if choice.seconds is None or record.gpu_hours is None:
        return
    click.echo(
        f"  predicted epoch on {counted(choice.num_gpus, 'GPU')}: {four_digits(choice.seconds)} s, "
        f"{four_digits(record.gpu_hours)} GPU-hours\n"
    )
    table = [[each.name, each.groups, four_digits(each.seconds), _gain(each, record)] for each in record.alternatives]
    print_table("Alternatives", ["", "groups", "epoch, s", "slower by"], table, is_dense=True)


def _cells(row: dict[str, Any]) -> list[str]:
    fits, memory = row["fits"], row["memory_bytes"]
    return [
        format_tokens(row["length"]),
        str(row["sp_size"]),
        str(row["checkpoint_layers"]),
        four_digits(row["seconds"]) if fits else "OOM",
        f"{row['seconds_per_token'] * 1e6:.3f}" if fits else "-",
        "-" if memory is None else f"{memory / _GIB:.1f}",
        row["mark"],
    ]


def _origin(rows: list[dict[str, Any]]) -> str:
    measured = sum(row["measured"] for row in rows)
    if not measured:
        return "; predicted, with samples in the mix of those that are no longer than the row"
    return "; as measured" + ("" if measured == len(rows) else ", those that were not by the fitted model")


def _gain(alternative: AlternativeGroups, record: GroupChoice) -> str:
    return "chosen" if alternative.groups == record.groups else f"{alternative.gain:.1%}"


def print_layouts(choice: LayoutChoice) -> None:
    """Print what the steps choose from on stdout, and what that saves."""
    rows = [
        [
            scheme.name,
            str(scheme.num_gpus),
            f"{scheme.capacity:,}",
            str(scheme.checkpoint_layers),
            four_digits(scheme.gpu_seconds_short),
            four_digits(scheme.gpu_seconds_long),
        ]
        for scheme in choice.schemes
    ]
    header = ["", "GPUs", "longest", "layers", "short, GPU-s", "long, GPU-s"]
    print_table("Kinds of pipelines", header, rows, is_dense=True)
    print_note(
        "longest: most tokens of a micro-batch; layers: checkpointed layers; GPU-s: GPU-seconds for a million tokens "
        "in samples of 1,024 tokens (short), and in samples as long as the pipeline holds (long)"
    )
    click.echo()
    table = [
        [
            ", ".join(f"{number} x {name}" for name, number in layout.pipelines.items()),
            f"{layout.longest:,}",
            f"{layout.fastest:.0%}",
            "-" if layout.step_seconds is None else four_digits(layout.step_seconds),
        ]
        for layout in choice.layouts
    ]
    title = f"Layouts of {counted(choice.num_gpus, 'GPU')} that the steps choose from"
    print_table(title, ["pipelines", "longest", "fastest in", "alone, s a step"], table, is_dense=True)
    print_note(
        f"{counted(choice.num_steps, 'step')} of {choice.global_tokens:,} tokens; predicted from "
        f"{choice.num_tried} of them: {four_digits(choice.step_seconds)} s a step, each on its fastest layout"
        + _compared(choice)
    )


def _compared(choice: LayoutChoice) -> str:
    alone = [layout.step_seconds for layout in choice.layouts if layout.step_seconds is not None]
    if len(choice.layouts) == 1 or not alone:
        return ""
    return f"; with the best one alone {min(alone) / choice.step_seconds - 1:.1%} longer"
