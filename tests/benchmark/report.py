"""Markdown tables, and the marked parts of docs/benchmarks/."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.benchmark.measure import ROOT, num_cores

PAGES = ROOT / "docs" / "benchmarks"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with the first column aligned left and the others right."""
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, with the least and the greatest value.

    >>> spread([3.0, 1.0, 2.0])
    '2.0 (1.0-3.0)'
    """
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def times(value: float, of: float) -> str:
    """The value as a multiple of `of`.

    >>> times(12.0, 5.0), times(3000.0, 2.0), times(0.5, 1.0)
    ('2.4x', '1,500x', '0.50x')
    """
    factor = value / of
    return f"{factor:.2f}x" if factor < 2 else f"{factor:.1f}x" if factor < 100 else f"{factor:,.0f}x"


def seconds(value: float) -> str:
    """Seconds in a suitable unit.

    >>> seconds(0.0000213), seconds(0.0123), seconds(5)
    ('21 us', '12.3 ms', '5.00 s')
    """
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def mebibytes(num_bytes: float) -> str:
    """Bytes as MiB."""
    return f"{num_bytes / 2**20:,.0f}"


def machine() -> str:
    """A short description of the machine, without its name."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{num_cores()} cores ({platform.machine()}), {memory:.0f} GiB memory, Python {platform.python_version()}"


def versions(names: Sequence[str]) -> str:
    """Versions of installed packages, on one line."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def write_section(name: str, body: str, pages: Path = PAGES) -> None:
    """Write `body` between the markers of `name`, on the one page that has them. Raises ValueError if none has."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(pages.glob("*.md"))}
    found = [path for path, text in texts.items() if begin in text]
    text = texts[found[0]] if len(found) == 1 else ""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"one page of {pages.name} needs one {begin} and, after it, one {end}")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    found[0].write_text(f"{head}{begin}\n{body.strip()}\n{end}{tail}", encoding="utf-8")
