"""The tables of `hbpack groups`: candidates as in HBP's tables 18 and 19, the choice, and its alternatives."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.console import print_note, print_table
from packer_cli.format.choice import AlternativeGroups, GroupChoice
from packer_cli.groups.choice import Choice
from packer_cli.groups.settings import Setting
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
