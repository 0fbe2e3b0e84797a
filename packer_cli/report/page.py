"""Sections to one HTML file, with everything that it needs inside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from packer_cli.format.records import Hidden, in_json
from packer_cli.report.charts.base import Chart, look, resource
from packer_cli.tables.table import Table
from packer_cli.version import __version__

MARK = b"<!doctype html>\n<!-- hbpack report"
"""The first bytes of a page."""
_VEGA = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    name: str
    """Its anchor."""
    title: str
    text: str
    charts: Hidden[tuple[Chart, ...]] = ()
    tables: Hidden[tuple[Table, ...]] = ()
    missing: str | None = None
    """Option that adds the part that is left out here."""

    @property
    @in_json
    def chart_names(self) -> list[str]:
        """Names of its charts."""
        return [chart.name for chart in self.charts]

    @property
    @in_json
    def table_titles(self) -> list[str]:
        """Titles of its tables."""
        return [table.title for table in self.tables]


class Tile(NamedTuple):
    """A figure at the top of the page."""

    label: str
    value: str
    text: str
    """Text that says what the value is compared with, or what it means."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that is to be read."""

    title: str
    summary: str
    tiles: tuple[Tile, ...]
    next_steps: tuple[str, ...]
    sections: tuple[Section, ...]
    values: Mapping[str, object]
    """Figures in full, as JSON inside the page."""


def render(page: Page) -> bytes:
    """Render the page as HTML. The same figures give the same bytes."""
    from jinja2 import Environment, StrictUndefined

    scripts = [*(_inline(resource("vendor", name)) for name in _VEGA), resource("template", "page.js")]
    charts = [chart for section in page.sections for chart in section.charts]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(resource("template", "page.html")).render(
        page=page,
        version=__version__,
        style=resource("template", "page.css"),
        scripts=scripts,
        policy=_policy(scripts),
        specs=_as_script({"look": look(), "charts": {chart.name: chart.spec for chart in charts}}),
        figures=_as_script(page.values),
    )
    return html.encode()


def _inline(code: str) -> str:
    """Write a library as an inline script, without its source map's address, and without what would end the script."""
    lines = [line for line in code.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return "\n".join(lines).replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    """Write a Content-Security-Policy that allows these scripts, inline styles, and nothing from a network."""
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _as_script(value: Any) -> str:
    """Write JSON for a script element, which no text in it can end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
