"""Tables as lines of text that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from packer_cli.tables.table import Table

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
    columns = [list(column) for column in zip(table.header, *table.rows, strict=True)]
    notes = table.notes
    if table.marked is not None:
        columns[0][table.marked + 1] += f" {_OWN}"
        notes = (*notes, f"{_OWN}: what your options plan")
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
    widths = [max(len(line) for cell in column for line in cell) for column in split]
    lines = []
    for number, row in enumerate(zip(*split, strict=True)):
        height = max(map(len, row))
        blank = [[""] * (height - len(cell)) for cell in row]
        padded = [[*cell, *rest] if number else [*rest, *cell] for cell, rest in zip(row, blank, strict=True)]
        for texts in zip(*padded, strict=True):
            aligned = (
                text.rjust(width) if i and not is_text else text.ljust(width)
                for i, (text, width) in enumerate(zip(texts, widths, strict=True))
            )
            lines.append((" " * (gap - 1) + (" " * gap).join(aligned)).rstrip())
        if not number:
            lines.append(" " + "─" * (sum(widths) + gap * len(widths) - 1))
    return lines
