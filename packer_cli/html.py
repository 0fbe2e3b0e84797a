"""Tables for notebooks: HTML without colors of its own, to be read on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "padding:2px 10px;border:0;text-align:"
_BOLD = ";font-weight:600"
_LINE = "border-bottom:1px solid rgba(128,128,128,.5)"


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str] = (),
    marked: int | None = None,
) -> str:
    """A table with its title above and notes below; the first column is text, the others are figures.

    Args:
        marked: the row that stands out.

    >>> html_table("A & B", ["", "packs"], [["16k:1", "240"]]).count("<tr")
    2
    """
    body = (_row(row, "td", _BOLD if number == marked else "") for number, row in enumerate(rows))
    lines = [
        f'<p style="margin:4px 0"><b>{escape(title)}</b></p>' if title else "",
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">',
        f"<thead>{_row(header, 'th', f'{_BOLD};{_LINE}')}</thead>",
        f"<tbody>{''.join(body)}</tbody></table>",
        *(f'<p style="margin:4px 0;opacity:.75">{escape(note)}</p>' for note in notes),
    ]
    return "\n".join(line for line in lines if line)


def _row(cells: Sequence[str], tag: str, style: str = "") -> str:
    aligned = zip(cells, ["left", *["right"] * len(cells)], strict=False)
    inner = (f'<{tag} style="{_CELL}{align}{style}">{escape(cell)}</{tag}>' for cell, align in aligned)
    return f'<tr style="background:none">{"".join(inner)}</tr>'
