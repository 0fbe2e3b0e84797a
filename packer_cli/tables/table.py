"""A table of figures as text, for every place that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; its first column names the rows, the others are figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    marked: int | None = None
    """The row that is the user's own."""
    is_text: bool = False
    """Whether the other columns are text, of which the last may take several lines."""
    is_open: bool = True
    """Whether a page shows it at first, or when the reader opens it."""


def cell(value: N | None, show: Callable[[N], str], missing: str = "") -> str:
    """Show a figure as text."""
    return missing if value is None else show(value)


def table_of_values(
    title: str, rows: Iterable[tuple[str, str]], header: str = "value", *, is_open: bool = True
) -> Table:
    """Tabulate names and values."""
    return Table(title=title, header=("", header), rows=tuple(rows), is_open=is_open)
