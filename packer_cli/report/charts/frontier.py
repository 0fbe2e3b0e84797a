"""Balance against randomness: what each way of forming iterations costs, and what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packer_cli.report.charts.base import INK, SERIES, Chart, Spec, color, framed, layer, number, short, tooltip
from packer_cli.sizes import ratio


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A plan of the same samples."""

    name: str
    kind: str
    """`this plan`, `strategy`, `balance` or `baseline`."""
    abr: float
    length_mix_spread: float


_KINDS = ("this plan", "strategy", "balance", "baseline")
_BESIDE = 8
"""Pixels from a point to its name."""
_SHAPES = ("diamond", "circle", "square", "triangle-up")


def chart_of_frontier(choices: Sequence[Choice]) -> Chart:
    """Draw a point for each plan; the lower left corner would be best."""
    places: dict[tuple[float, float], Choice] = {}
    for each in sorted(choices, key=lambda each: _KINDS.index(each.kind)):
        places.setdefault((each.abr, each.length_mix_spread), each)
    shown = list(places.values())
    highest = max(each.abr for each in shown)
    spreads = [each.length_mix_spread for each in shown]
    low, high = min(spreads), max(spreads)
    room = max(0.02, 0.12 * (high - low))
    named = _named(shown, highest, high - low + 2 * room)
    values = [
        {"name": each.name, "kind": each.kind, "abr": short(each.abr), "mix": short(each.length_mix_spread),
         "label": each.name if each in named else "", "side": "right" if each.length_mix_spread > (low + high) / 2
         else "left"}
        for each in reversed(shown)  # The user's own is drawn last.
    ]  # fmt: skip
    kinds = [kind for kind in _KINDS if any(each.kind == kind for each in shown)]
    x = number(
        "mix",
        scale={"domain": [max(0.0, low - room), high + room], "nice": False, "zero": False},
        axis={"title": "length mix spread (0: mixed like the data)", "tickCount": 6},
    )
    y = number(
        "abr",
        scale={"type": "sqrt", "domain": [0, max(highest * 1.1, 0.01)], "nice": False},
        axis={"title": "ABR (share of attention time spent waiting)", "tickCount": 6},
    )
    points = layer(
        values,
        {"type": "point", "filled": True, "opacity": 0.95},
        x=x,
        y=y,
        color=_of_kind(kinds, SERIES),
        shape=_of_kind(kinds, _SHAPES),
        size={"condition": {"test": f"datum.kind == '{_KINDS[0]}'", "value": 220}, "value": 100},
        tooltip=tooltip(("name",), ("kind",), ("abr", "ABR", ".4f"), ("mix", "length mix spread", ".3f")),
    )
    beside = {"expr": f"width / 2 - {_BESIDE}"}
    labels = [
        layer(
            [each for each in values if each["side"] == side],
            {"type": "text", "align": side, "dx": dx, "dy": -9, "color": INK, "limit": beside},
            x=x,
            y=y,
            text="label",
        )
        for side, dx in (("left", _BESIDE), ("right", -_BESIDE))
    ]
    return Chart(
        name="frontier",
        title="Balance and randomness",
        text="Sorting packs by work evens out iterations, and mixes lengths less in a step. Each point is a plan of "
        "the same samples: lower waits less, further left is more random. The table names them all.",
        spec=framed(300, points, *labels),
        header=("plan", "kind", "ABR", "length mix spread"),
        rows=tuple((each.name, each.kind, ratio(each.abr), f"{each.length_mix_spread:.3f}") for each in shown),
    )


def _of_kind(kinds: Sequence[str], values: Sequence[str]) -> Spec:
    chosen = dict(zip(_KINDS, values, strict=False))
    return color("kind", kinds, [chosen[kind] for kind in kinds])


def _named(choices: Sequence[Choice], highest: float, width: float) -> list[Choice]:
    """Choose plans with room for a name beside their point, the first ones first."""
    named: list[Choice] = []
    places: list[tuple[float, float]] = []
    for each in choices:
        place = (each.length_mix_spread / width if width else 0.0, (each.abr / highest) ** 0.5 if highest else 0.0)
        if all(abs(place[0] - x) > 0.22 or abs(place[1] - y) > 0.09 for x, y in places):
            named.append(each)
            places.append(place)
    return named
