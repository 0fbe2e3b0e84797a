"""A table of figures as text, and results that are shown as tables: in terminals, notebooks and on pages."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

from packer_cli.errors import printable
from packer_cli.format.records import json_values

N = TypeVar("N", int, float)
Item = TypeVar("Item")


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


def table_of(title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], object]], *notes: str) -> Table:
    """Tabulate items, a row each.

    Args:
        columns: header -> what the column shows of an item.

    >>> table_of("Packs", [("16k:1", 240)], {"": lambda each: each[0], "packs": lambda each: each[1]}).rows
    (('16k:1', '240'),)
    """
    rows = tuple(tuple(str(show(each)) for show in columns.values()) for each in items)
    return Table(title=title, header=tuple(columns), rows=rows, notes=notes)


def table_of_values(
    title: str, rows: Iterable[tuple[str, str]], header: str = "value", *, is_open: bool = True
) -> Table:
    """Tabulate names and values."""
    return Table(title=title, header=("", header), rows=tuple(rows), is_open=is_open)


_LEAST_TEXT = 20
"""Characters of a column of text, however narrow the terminal is."""
_WIDE = 160
"""Characters of a line where no terminal is known."""
_OWN = "(yours)"
_NARROW = 3
"""Columns up to which a table has room for wider gaps."""


def tables_text(tables: Iterable[Table], width: int | None) -> str:
    """Write tables below each other.

    Args:
        width: of the terminal; None: lines may be as long as they need.
    """
    texts = [table_text(table, width) for table in tables]
    return "\n\n".join(text.rstrip("\n") for text in texts) + "\n" if texts else ""


def table_text(table: Table, width: int | None) -> str:
    """Write a table and its notes: the first column left-aligned, the others right, or if they are text, left, too.

    Text in the last column takes several lines where the terminal is narrow.

    If the terminal is too narrow, headers take several lines. If it still is, the remaining columns follow below, with
    the first column repeated and a heading that says so.
    """
    gap = 3 if len(table.header) <= _NARROW else 2
    columns = [[*map(printable, column)] for column in zip(table.header, *table.rows, strict=True)]
    notes = [*map(printable, table.notes)]
    if table.marked is not None:
        columns[0][table.marked + 1] += f" {_OWN}"
        notes.append(f"{_OWN}: what your options plan")
    widths = [max(map(len, column)) + gap for column in columns]
    room = max(_WIDE, sum(widths)) if width is None else width
    if table.is_text and sum(widths) > room:
        most = max(_LEAST_TEXT, room - sum(widths[:-1]) - gap)
        columns[-1] = [textwrap.fill(text, most, break_on_hyphens=False) for text in columns[-1]]
    elif sum(widths) > room:
        columns = [[_wrapped(column), *column[1:]] for column in columns]
        widths = [max(map(len, [*column[0].split("\n"), *column[1:]])) + gap for column in columns]
    lines = []
    for number, block in enumerate([[*range(len(columns))]] if table.is_text else _blocks(widths, room)):
        heading = "More columns of the same rows" if number else table.title
        lines += textwrap.wrap(heading, room, break_on_hyphens=False)
        lines += ["", *_lines([columns[i] for i in block], gap, is_text=table.is_text), ""]
    for note in notes:
        lines += note_lines(note, width)
    return "\n".join(lines) + "\n"


def note_lines(text: str, width: int | None) -> list[str]:
    """Wrap the lines of a note below a table."""
    if width is None:
        return [f"  {text}"]
    return textwrap.wrap(text, max(40, width), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _wrapped(column: Sequence[str]) -> str:
    """Wrap a header over several lines, as narrow as its longest word and the cells allow."""
    header, *cells = column
    width = max(map(len, [*header.split(), *cells]), default=1)
    return textwrap.fill(header, max(width, 1), break_long_words=False, break_on_hyphens=False)


def _blocks(widths: list[int], room: int) -> list[list[int]]:
    """Divide columns into blocks; return the indices of each block, which starts with column 0."""
    blocks = [[0]]
    left = room - widths[0]
    for i in range(1, len(widths)):
        if widths[i] > left and len(blocks[-1]) > 1:
            blocks.append([0])
            left = room - widths[0]
        blocks[-1].append(i)
        left -= widths[i]
    return blocks


def _lines(columns: Sequence[Sequence[str]], gap: int, *, is_text: bool) -> list[str]:
    """Write the lines of a block: the header at the bottom of its lines, a rule, rows at the top of theirs."""
    split = [[text.split("\n") for text in column] for column in columns]
    widths = [max(len(line) for each in column for line in each) for column in split]
    lines = []
    for number, row in enumerate(zip(*split, strict=True)):
        height = max(map(len, row))
        blank = [[""] * (height - len(each)) for each in row]
        padded = [[*each, *rest] if number else [*rest, *each] for each, rest in zip(row, blank, strict=True)]
        for texts in zip(*padded, strict=True):
            aligned = (
                text.rjust(width) if i and not is_text else text.ljust(width)
                for i, (text, width) in enumerate(zip(texts, widths, strict=True))
            )
            lines.append((" " * (gap - 1) + (" " * gap).join(aligned)).rstrip())
        if not number:
            lines.append(" " + "─" * (sum(widths) + gap * len(widths) - 1))
    return lines


_CELL = "padding:2px 10px;border:0;text-align:"
_BOLD = ";font-weight:600"
_LINE = "border-bottom:1px solid rgba(128,128,128,.5)"


def tables_html(tables: Iterable[Table]) -> str:
    """Write tables as HTML below each other, each with its title above and notes below. The marked row stands out.

    There are no colors, so that they are read on light and dark pages.

    >>> tables_html([Table(title="A & B", header=("", "packs"), rows=(("16k:1", "240"),))]).count("<tr")
    2
    """
    return "\n".join(line for table in tables for line in _html_lines(table))


def _html_lines(table: Table) -> Iterable[str]:
    if table.title:
        yield f'<p style="margin:4px 0"><b>{escape(table.title)}</b></p>'
    body = (_html_row(row, "td", _BOLD if number == table.marked else "") for number, row in enumerate(table.rows))
    yield '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
    yield f"<thead>{_html_row(table.header, 'th', f'{_BOLD};{_LINE}')}</thead>"
    yield f"<tbody>{''.join(body)}</tbody></table>"
    yield from (f'<p style="margin:4px 0;opacity:.75">{escape(note)}</p>' for note in table.notes)


def _html_row(cells: Sequence[str], tag: str, style: str = "") -> str:
    aligned = zip(cells, ["left", *["right"] * len(cells)], strict=False)
    inner = (f'<{tag} style="{_CELL}{align}{style}">{escape(text)}</{tag}>' for text, align in aligned)
    return f'<tr style="background:none">{"".join(inner)}</tr>'


JsonValues = dict[str, Any]
"""Values that `--json` prints of a result; `schemas/output/` describes them."""


class Result(ABC):
    """A result that notebooks show, and Python prints, as tables."""

    def values(self) -> JsonValues:
        """Return JSON values, as the command prints them with `--json`."""
        return dict(json_values(self))

    def __repr__(self) -> str:
        return tables_text(self._tables(), None)

    @abstractmethod
    def _tables(self) -> Iterable[Table]: ...

    def _repr_html_(self) -> str:
        return tables_html(self._tables())
