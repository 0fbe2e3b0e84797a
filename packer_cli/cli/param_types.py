"""The types of options and arguments: what they refuse, and what a shell completes them with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from packer_cli.errors import InputError, OutputError
from packer_cli.panels import Names


class Text(click.ParamType):  # type: ignore[type-arg]  # Not so in older releases.
    """Text that the command validates.

    Args:
        names: what a shell completes it with, after a comma again; None for files.
    """

    name = "text"
    _completes = "file"

    def __init__(self, names: Names | None = None) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin as the word does, or files."""
        if self._names is None:
            return [CompletionItem(incomplete, type=self._completes)]
        before, comma, begin = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{name}") for name in self._names() if name.startswith(begin)]


class Value(Text):
    """Text, or a value from a config file; the model validates it."""


class LocalPath(Text):
    """A path on this machine. A URL is refused: as a path, `s3://bucket/out` would be a local folder named `s3:`."""

    def __init__(self, *, is_output: bool = False) -> None:
        super().__init__()
        self._is_output = is_output

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path unchanged, or fail."""
        text = str(value)
        if "://" in text and self._is_output:
            raise OutputError(f"{text}: hbpack writes local files; name a local path, and upload what is there")
        if "://" in text:
            raise InputError(f"{text}: hbpack reads local files; download it first")
        return value


class Folder(Text):
    """The output of an earlier command, or its URL."""

    _completes = "dir"


class OutputFolder(Folder):
    """A folder or URL to write to. An empty name, as from an unset variable, is refused: it would mean the current
    folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name unchanged, or fail."""
        if not str(value):
            self.fail("it is empty; name a folder, or '.' for the current one.", param, ctx)
        return value


def words_of(metavar: str) -> Names:
    """The words that a metavar offers, without what only stands for a value.

    >>> words_of("sequence|document|auto[:rho=R]")()
    ['sequence', 'document', 'auto']
    """
    return lambda: re.findall(r"(?:^|\|)([a-z]+)(?=$|[|\[])", metavar)


def compared() -> Iterable[str]:
    """Values of `--strategies`."""
    from packer_cli.compare.rows import ALL
    from packer_cli.plan.strategies.registry import STRATEGIES

    return (ALL, *STRATEGIES.names())


def columns() -> Iterable[str]:
    """Columns of `hbpack compare`."""
    from packer_cli.tables.columns import COLUMNS

    return (column.name for column in COLUMNS)
