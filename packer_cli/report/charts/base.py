"""Base of all charts: the record, the look, and axes of tokens."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packer_cli.simulate.epoch import PARTS

Spec = dict[str, Any]

_MIME = "application/vnd.vegalite.v5+json"
"""MIME type that notebooks (Jupyter, VS Code, GitHub) draw."""
_NOTEBOOK_WIDTH = 720


@dataclass(frozen=True, kw_only=True, repr=False)
class Chart:
    """A chart of the page. A notebook draws it."""

    name: str
    """Unique on the page."""
    title: str
    """Its heading."""
    text: str
    """Text for people on what is to be seen; it stands above the chart."""
    spec: Spec
    """Vega-Lite, without schema, look and size; colors are CSS variables of the page."""
    header: tuple[str, ...]
    """Header of the table below."""
    rows: tuple[tuple[str, ...], ...]
    """The chart as a table, for those who cannot see it."""
    is_wide: bool = True
    """Whether it takes the width of the page, and not half of it."""

    def vega_lite(self) -> Spec:
        """Return the chart on its own: Vega-Lite with its title, look, colors and width."""
        title = {
            "text": self.title,
            "subtitle": textwrap.wrap(self.text, 110),
            "anchor": "start",
            "color": INK,
            "subtitleColor": MUTED,
            "offset": 12,
        }
        config = {**look(), "background": "var(--panel)"}
        schema = "https://vega.github.io/schema/vega-lite/v5.json"
        spec = {"$schema": schema, **self.spec, "width": _NOTEBOOK_WIDTH, "title": title, "config": config}
        del spec["autosize"]  # It is for a place on the page, and cuts off a title above a legend of two lines.
        return dict(without_variables(spec))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {_MIME: self.vega_lite(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<Chart {self.name}: {self.title}>"


SERIES = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colors of things without an order, told apart by color-blind people; the last is for what is left."""
LENGTHS = tuple(f"var(--length-{number})" for number in range(1, 7))
"""Colors of lengths, from short to long."""
INK, MUTED = "var(--ink)", "var(--muted)"

_LETTER, _SYMBOL = 7, 45
"""Pixels of a letter of a legend, and of a symbol with the space around it."""


@cache
def look() -> Spec:
    """Return the configuration of every chart. By the name of the page's font, Vega knows how wide a text is."""
    return dict(json.loads(resource("template", "look.json")))


_TOKENS = "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~r') + 'M' : datum.value >= 1024 ? "
_TOKENS += "format(datum.value / 1024, '.3~r') + 'k' : format(datum.value, 'd')"


def tokens_axis(title: str, **more: Any) -> Spec:
    """Make an axis whose labels are tokens as hbpack writes them: 16k is 16,384."""
    return {"title": title, "labelExpr": _TOKENS, **more}


def quarters(capacity: int) -> list[int]:
    """Return ticks of a token axis: none, all, and three between, which are whole k where the capacity is."""
    return [capacity * part // 4 for part in range(5)]


def layer(rows: Sequence[Spec], mark: Spec, **encoding: Any) -> Spec:
    """Make a mark for each row, with what its fields decide: a field by its name alone, or with more about it."""
    shown = {name: {"field": each} if isinstance(each, str) else each for name, each in encoding.items()}
    return {"data": {"values": rows}, "mark": mark, "encoding": shown}


def number(field: str, **more: Any) -> Spec:
    """Make a field with numbers."""
    return {"field": field, "type": "quantitative", **more}


def tooltip(*shown: Sequence[str]) -> list[Spec]:
    """Make the text at the mouse: fields, with their titles and formats if they have any."""
    return [dict(zip(("field", "title", "format"), each, strict=False)) for each in shown]


DASHED: Spec = {"type": "rule", "strokeDash": [4, 3], "stroke": INK, "opacity": 0.7}
"""The mark of a limit."""


def framed(height: int, *layers: Spec, **more: Any) -> Spec:
    """Make a specification as wide as its place on the page."""
    spec: Spec = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**spec, **more, **({"layer": list(layers)} if len(layers) > 1 else layers[0])}


def color(field: str, domain: Sequence[str], values: Sequence[Any], title: str | None = None, **legend: Any) -> Spec:
    """Make a field with names, each with a color, shape or dash, and a legend of them in their order.

    The legend has as many columns as there is room for.
    """
    column = max(map(len, domain), default=0) * _LETTER + _SYMBOL
    shown = {
        "title": title,
        "columns": {"expr": f"max(1, floor(width / {column}))"},
        "labelLimit": {"expr": f"max({_SYMBOL}, width - {_SYMBOL})"},
        **legend,
    }
    scale = {"domain": list(domain), "range": list(values[: len(domain)])}
    return {"field": field, "type": "nominal", "scale": scale, "legend": shown}


def short(value: float, digits: int = 5) -> float:
    """Round a number to few digits, which keep the page small."""
    return float(f"{value:.{digits}g}")


LABELS = {
    "compute": "computing",
    "recompute": "computing again",
    "communication": "communicating",
    "padding": "padding",
    "waiting": "waiting",
    "constant": "fixed cost",
    "bubbles": "pipeline bubbles",
    "sync": "gradients and weights of a step",
    "steps": "end of a step",
}
"""Words for the parts of time, see `PARTS`."""


def legend_of(parts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return labels and colors of these parts, in the order of `PARTS`."""
    used = set(parts)
    shown = [part for part in PARTS if part in used]
    return [LABELS[part] for part in shown], [f"var(--part-{part})" for part in shown]


@cache
def light_colors() -> dict[str, str]:
    """Read the colors of the light page by the names of their CSS variables, such as `ink`."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", resource("template", "page.css").partition("@media")[0]))


def resource(*place: str) -> str:
    """Read a file of this package."""
    return files("packer_cli.report").joinpath(*place).read_text(encoding="utf-8")


def without_variables(value: Any) -> Any:
    """Replace each CSS variable in JSON values by the color that the variable stands for on the light page."""
    if isinstance(value, dict):
        return {name: without_variables(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_variables(each) for each in value]
    if isinstance(value, str) and value.startswith("var(--"):
        return light_colors()[value.removeprefix("var(--").removesuffix(")")]
    return value
