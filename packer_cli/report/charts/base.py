"""Base of all charts: the record, the look, and what several charts need."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from packer_cli.plan.core.types import Int64Array

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
            "color": "var(--ink)",
            "subtitleColor": "var(--muted)",
            "offset": 12,
        }
        config = {**look(), "background": "var(--panel)"}
        schema = "https://vega.github.io/schema/vega-lite/v5.json"
        spec = {"$schema": schema, **self.spec, "width": _NOTEBOOK_WIDTH, "title": title, "config": config}
        del spec["autosize"]  # It is for a place on the page, and cuts off a title above a legend of two lines.
        return dict(_replaced(spec, _light_color))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {_MIME: self.vega_lite(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<Chart {self.name}: {self.title}>"


def _replaced(value: Any, change: Callable[[str], Any]) -> Any:
    """Replace each text in JSON values."""
    if isinstance(value, dict):
        return {name: _replaced(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def _light_color(text: str) -> str:
    """Return the color that a CSS variable stands for on the light page; any other text as it is."""
    return _light_colors()[text[6:-1]] if text.startswith("var(--") else text


@cache
def _light_colors() -> dict[str, str]:
    """Read the colors of the light page by the names of their CSS variables, such as `ink`."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", resource("template", "page.css").partition("@media")[0]))


@cache
def look() -> Spec:
    """Return the configuration of every chart. By the name of the page's font, Vega knows how wide a text is."""
    return dict(json.loads(resource("template", "look.json")))


_SPECS = cache(lambda: json.loads(resource("template", "charts.json")))
_TOKENS = "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~r') + 'M' : datum.value >= 1024 ? "
_TOKENS += "format(datum.value / 1024, '.3~r') + 'k' : format(datum.value, 'd')"
"""Labels of an axis of tokens as hbpack writes them: 16k is 16,384."""


def drawn(name: str, **given: Any) -> Spec:
    """Make the specification of a kind of chart, as wide as its place on the page.

    Args:
        name: the kind, of `template/charts.json`.
        given: what stands for `$NAME` there; a layer whose values are None is left out.
    """
    given["tokens"] = _TOKENS
    found = _replaced(_SPECS()[name], lambda text: given[text[1:]] if text.startswith("$") else text)
    layers = [each for each in found["layer"] if each["data"]["values"] is not None]
    return {
        "width": "container",
        "height": found["height"],
        "autosize": {"type": "fit-x", "contains": "padding"},
        **({"layer": layers} if len(layers) > 1 else layers[0]),
    }


SERIES = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colors of things without an order, told apart by color-blind people; the last is for what is left."""
_LETTER, _SYMBOL = 7, 45
"""Pixels of a letter of a legend, and of a symbol with the space around it."""


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
"""Words for the parts of time, see `simulate.epoch.PARTS`."""


def color_of_parts(parts: Collection[str]) -> Spec:
    """Make the field `part` with the labels and colors of these parts of time."""
    return color("part", [LABELS[part] for part in parts], [f"var(--part-{part})" for part in parts])


def short(value: float, digits: int = 5) -> float:
    """Round a number to few digits, which keep the page small."""
    return float(f"{value:.{digits}g}")


def evenly(num: int, most: int) -> Int64Array:
    """Return at most `most` of the numbers below `num` (int64), evenly spread, with the first and the last.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.int64))


def resource(*place: str) -> str:
    """Read a file of this package."""
    return files("packer_cli.report").joinpath(*place).read_text(encoding="utf-8")
