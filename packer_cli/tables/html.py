"""Tables for notebooks: HTML without colors of its own, to be read on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from packer_cli.tables.table import Table

_CELL = "padding:2px 10px;border:0;text-align:"
_BOLD = ";font-weight:600"
_LINE = "border-bottom:1px solid rgba(128,128,128,.5)"


def tables_html(tables: Iterable[Table]) -> str:
    """Write tables below each other, each with its title above and notes below. The marked row stands out.

    >>> tables_html([Table(title="A & B", header=("", "packs"), rows=(("16k:1", "240"),))]).count("<tr")
    2
    """
    return "\n".join(line for table in tables for line in _lines(table))


def _lines(table: Table) -> Iterable[str]:
    if table.title:
        yield f'<p style="margin:4px 0"><b>{escape(table.title)}</b></p>'
    body = (_row(row, "td", _BOLD if number == table.marked else "") for number, row in enumerate(table.rows))
    yield '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
    yield f"<thead>{_row(table.header, 'th', f'{_BOLD};{_LINE}')}</thead>"
    yield f"<tbody>{''.join(body)}</tbody></table>"
    yield from (f'<p style="margin:4px 0;opacity:.75">{escape(note)}</p>' for note in table.notes)


def _row(cells: Sequence[str], tag: str, style: str = "") -> str:
    aligned = zip(cells, ["left", *["right"] * len(cells)], strict=False)
    inner = (f'<{tag} style="{_CELL}{align}{style}">{escape(cell)}</{tag}>' for cell, align in aligned)
    return f'<tr style="background:none">{"".join(inner)}</tr>'
