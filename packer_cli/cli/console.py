"""Output for people: lines and progress on stderr, results on stdout.

Texts hold names of files, keys of records and whatever else came from outside, so each line is made `printable` here.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from packer_cli.cli.log import LINES, progress_lines
from packer_cli.engine.progress import LOGGER, Progress, show_bars
from packer_cli.errors import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from packer_cli.config import GpuConfig
    from packer_cli.format.manifest import Manifest
    from packer_cli.tables.table import Table


def show_progress() -> None:
    """Show progress and lines on finished work, as the command line does: on stderr, or below a notebook's cell."""
    if not LOGGER.handlers:
        LOGGER.addHandler(LINES)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
    show_bars(_progress_bar)


def print_line(text: str = "") -> None:
    """Print a line on stdout."""
    click.echo(printable(text))


@contextmanager
def _progress_bar(label: str, unit: str) -> Iterator[Progress]:
    """Show a bar on a terminal's stderr, or below a notebook's cell, where rich puts it; else print lines."""
    if LINES.form is not None or not (sys.stderr.isatty() or _in_notebook()):
        with progress_lines(label, unit) as show_line:
            yield show_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else TextColumn("{task.fields[amount]}")
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, amount="")

        def show(done: int, total: int, what: str = "") -> None:
            named = printable(f"{label} {what}".rstrip())
            bar.update(task, description=named, completed=done, total=total, amount=f"{done:,}/{total:,} {unit}")

        yield show


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def is_terminal() -> bool:
    """Whether stdout is a terminal, whose width counts."""
    return sys.stdout.isatty()


def print_tables(*tables: Table) -> None:
    """Print tables on stdout, as wide as the terminal if it is one."""
    from packer_cli.tables.table import tables_text

    click.echo(tables_text(tables, _width()), nl=False)


def print_note(text: str) -> None:
    """Print a line as below a table; on a terminal, wrap the line to its width."""
    from packer_cli.tables.table import note_lines

    for line in note_lines(printable(text), _width()):
        print_line(line)


@dataclass
class JsonOutput:
    """The JSON of a command on stdout."""

    is_wanted: bool = False
    """Whether `--json` was given."""
    is_printed: bool = False

    def print(self, result: Any) -> bool:
        """Print a result if it is wanted; return whether it is."""
        if self.is_wanted:
            from packer_cli.format.records import json_values

            self.is_printed = True
            click.echo(json.dumps(json_values(result), indent=2))
        return self.is_wanted


def wants_json() -> bool:
    """Whether `--json` was given."""
    return click.get_current_context().ensure_object(JsonOutput).is_wanted


def print_json(result: Any) -> bool:
    """Print a result on stdout as JSON if `--json` was given; return whether it was."""
    return click.get_current_context().ensure_object(JsonOutput).print(result)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if is_terminal() else None


def say_next(what: str, *steps: str) -> None:
    """Print the last line of a command: its result, and the next steps."""
    *first, last = steps
    print_line(f"{what}. Next: {', '.join(first)}, or {last}" if first else f"{what}. Next: {last}")


def shown_command(*words: object) -> str:
    """Write a command to run, quoted for a shell.

    >>> shown_command("hbpack", "show", "my set")
    "hbpack show 'my set'"
    """
    return shlex.join(map(str, words))


def shown_options(config: BaseModel, kind: type[BaseModel]) -> list[str]:
    """Write the options of a config that this model has and that are not at their defaults, as words of a command."""
    from packer_cli.config import option_name

    values = config.model_dump(mode="json", include=set(kind.model_fields), exclude_defaults=True)
    return [word for name, value in values.items() for word in (option_name(name), str(value))]


def say_share(output: str) -> None:
    """Print the line of a task whose job array is not done, with the command that shows what is left."""
    say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))


_FORMAT = {"sample": "", "item": ', format="tree"'}
"""Argument with which a set is read, by its unit."""


def say_set(output: str, manifest: Manifest, config: GpuConfig) -> None:
    """Print the contents of a set, and the next steps.

    Args:
        config: model and GPU with which `hbpack report` predicts times; a set does not keep them.
    """
    from packer_cli.commands.write import describe_set
    from packer_cli.config import GpuConfig
    from packer_cli.format.constants import VALIDATION
    from packer_cli.remote.path import as_path

    report = shown_command("hbpack", "report", output, *shown_options(config, GpuConfig))
    arguments = f"{manifest.num_gpus}{_FORMAT[manifest.unit]}"
    train = f'train with packer_cli.loader.PackedDataset("{output}", rank, {arguments})'
    if manifest.unit == "sample" and all(group.tp_size * group.pp_size == 1 for group in manifest.groups):
        train += f', or with packed(Trainer)(model, args, train_dataset="{output}") as in docs/train.md'
    steps = [shown_command("hbpack", "show", output), report, train]
    if manifest.planned.sets_aside:
        steps.append(f'evaluate with PackedDataset("{as_path(output) / VALIDATION}", rank, {arguments})')
    say_next(f"{output} holds {describe_set(manifest)}", *steps)
