"""Output for people: progress on stderr if it is a terminal, results on stdout."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from packer_cli.engine.progress import LOGGER, Progress, show_bars

if TYPE_CHECKING:
    from pydantic import BaseModel


class _Lines(logging.Handler):
    """Prints the lines of the stages on stderr, above the bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        if record.levelno >= logging.WARNING:
            say_colored("warning: ", "yellow", record.getMessage())
        else:
            print(record.getMessage(), file=sys.stderr, flush=True)  # Click would write over the bar.


def show_progress() -> None:
    """Show progress bars and lines on what was done, as the command line does: on stderr, or below a notebook cell."""
    if not LOGGER.handlers:
        LOGGER.addHandler(_Lines())
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
    show_bars(_progress_bar)


def say_colored(word: str, color: str, text: str) -> None:
    """Print a line on stderr. Its first word is colored if stderr is a terminal and NO_COLOR is not set."""
    plain = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(word, fg=color, bold=True) + text, err=True, color=plain)


@contextmanager
def _progress_bar(label: str, unit: str) -> Iterator[Progress]:
    """A bar, or nothing if stderr is neither a terminal nor a notebook's, where rich shows it below the cell."""
    if not (sys.stderr.isatty() or _in_notebook()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else TextColumn("{task.fields[amount]}")
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, amount="")
        yield lambda done, total: bar.update(task, completed=done, total=total, amount=f"{done:,}/{total:,} {unit}")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def is_terminal() -> bool:
    """Whether stdout is a terminal, whose width counts."""
    return sys.stdout.isatty()


_LEAST_TEXT = 20
"""Characters of a column of text, however narrow the terminal is."""


def print_table(
    title: str, header: list[str], rows: list[list[str]], *, is_dense: bool = False, is_text: bool = False
) -> None:
    """Print a table on stdout: the first column left-aligned, the others right-aligned, or if they are text, left too.
    Text in the last column takes several lines where the terminal is narrow.

    If the terminal is too narrow, headers take several lines. If it still is, the remaining columns follow below, with
    the first column repeated and a heading that says so.
    """
    from rich.console import Console

    padding = (0, 1, 0, 0) if is_dense else (0, 1, 0, 1)  # top, right, bottom, left
    between = padding[1] + padding[3] + 1
    widths = [max(map(len, column)) + between for column in zip(header, *rows, strict=True)]
    width = Console().width if is_terminal() else max(160, sum(widths))
    console = Console(width=width + 2, highlight=False)  # The frame on the right is not printed.
    if is_text and sum(widths) > width:
        room = max(_LEAST_TEXT, width - sum(widths[:-1]) - between)
        rows = [[*row[:-1], textwrap.fill(row[-1], room, break_on_hyphens=False)] for row in rows]
    elif sum(widths) > width:
        header = [_wrapped(name, [row[i] for row in rows]) for i, name in enumerate(header)]
        lines = [[*name.split("\n"), *(row[i] for row in rows)] for i, name in enumerate(header)]
        widths = [max(map(len, column)) + between for column in lines]
    blocks = [list(range(len(header)))] if is_text else _blocks(widths, width)
    for number, block in enumerate(blocks):
        heading = "More columns of the same rows" if number else title
        if heading:
            click.echo(textwrap.fill(heading, width, break_on_hyphens=False))
        _print_block(console, [[row[i] for i in block] for row in [header, *rows]], padding, is_text=is_text)


def _wrapped(header: str, cells: list[str]) -> str:
    """A header over several lines, as narrow as its longest word and the cells allow."""
    width = max(map(len, [*header.split(), *cells]), default=1)
    return textwrap.fill(header, max(width, 1), break_long_words=False, break_on_hyphens=False)


def _blocks(widths: list[int], room: int) -> list[list[int]]:
    """The column indices of each block; every block starts with column 0."""
    blocks = [[0]]
    left = room - widths[0]
    for i in range(1, len(widths)):
        if widths[i] > left and len(blocks[-1]) > 1:
            blocks.append([0])
            left = room - widths[0]
        blocks[-1].append(i)
        left -= widths[i]
    return blocks


def _print_block(console: Any, cells: list[list[str]], padding: tuple[int, int, int, int], *, is_text: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=padding)
    for i, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if i and not is_text else "left", no_wrap=True)
    for row in cells[1:]:
        table.add_row(*row)
    with console.capture() as capture:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().rstrip().splitlines()) + "\n")


def print_note(text: str, indent: str = "  ") -> None:
    """Print a line below a table; on a terminal, as several lines that fit it."""
    if not is_terminal():
        click.echo(indent + text)
        return
    width = max(40, shutil.get_terminal_size().columns)
    click.echo(
        textwrap.fill(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
    )


def say_next(what: str, *steps: str) -> None:
    """Print the last line of a command: what was written or found, and what to do next."""
    *first, last = steps
    click.echo(f"{what}. Next: {', '.join(first)}, or {last}" if first else f"{what}. Next: {last}")


def shown_command(*words: object) -> str:
    """A command to run, quoted for a shell.

    >>> shown_command("hbpack", "show", "my set")
    "hbpack show 'my set'"
    """
    return shlex.join(map(str, words))


def shown_options(config: BaseModel) -> list[str]:
    """The options of a config that are not at their defaults, as words of a command."""
    from packer_cli.config.messages import option_name

    values = config.model_dump(mode="json", exclude_defaults=True)
    return [word for name, value in values.items() for word in (option_name(name), str(value))]
