"""Which samples share a row: packs as stacked bars (HBP's figure 1), and their attention work."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.report.charts.base import (
    DASHED,
    LENGTHS,
    Chart,
    color,
    framed,
    layer,
    number,
    quarters,
    short,
    tokens_axis,
    tooltip,
)
from packer_cli.report.data import DrawnPacks, WorkOfRanks
from packer_cli.sizes import counted, format_tokens

_FEW = 12
"""Packs that fill the width; fewer leave room, for they are no wider."""


def chart_of_packs(drawn: DrawnPacks, classes: Sequence[int], name: str, title: str) -> Chart:
    """Draw packs side by side; a segment is a sample, or several short ones, and its color says how long they are."""
    names = [f"up to {format_tokens(bound)}" for bound in classes]
    place = {pack: number for number, pack in enumerate(drawn.packs.tolist())}
    values = [
        {"pack": place[each.pack], "end": place[each.pack] + 0.86, "id": each.pack, "begin": each.begin,
         "stop": each.stop, "length": names[each.length_class], "samples": each.num_samples,
         "tokens": each.stop - each.begin}
        for each in drawn.segments
    ]  # fmt: skip
    wide = {"scale": {"domain": [0, max(len(place), _FEW)], "nice": False}, "axis": None}
    high = {"scale": {"domain": [0, drawn.group.capacity], "nice": False}}
    bars = layer(
        values,
        {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.6},
        x=number("pack", **wide),
        x2="end",
        y=number("begin", **high, axis=tokens_axis("tokens of the row", values=quarters(drawn.group.capacity))),
        y2="stop",
        color={**color("length", names, LENGTHS, title="tokens of a sample"), "type": "ordinal"},
        tooltip=tooltip(("id", "pack"), ("samples", "samples"), ("tokens", "tokens", ",d"), ("length", "each")),
    )
    line = layer([{"at": drawn.group.capacity}], DASHED, y=number("at", **high))
    shown = counted(len(place), "pack")
    which = shown if len(place) == drawn.num_packs else f"{shown} of {drawn.num_packs:,}, evenly spread over the epoch"
    gpus = "one GPU runs each" if drawn.group.num_gpus == 1 else f"{drawn.group.num_gpus} GPUs run each together"
    return Chart(
        name=name,
        title=title,
        text=f"{which}; {gpus}. The dashed line is the capacity, {format_tokens(drawn.group.capacity)} tokens.",
        spec=framed(220, bars, line),
        header=("pack", "samples", "tokens", "longest sample"),
        rows=_rows(drawn, names),
        is_wide=False,
    )


def _rows(drawn: DrawnPacks, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for pack in drawn.packs.tolist():
        own = [each for each in drawn.segments if each.pack == pack]
        longest = names[max(each.length_class for each in own)]
        rows.append((str(pack), f"{sum(each.num_samples for each in own):,}", f"{own[-1].stop:,}", longest))
    return tuple(rows)


def chart_of_work(found: WorkOfRanks, highest: float, name: str, title: str, text: str) -> Chart:
    """Draw a point for each replica of some iterations, and a line from the least to the most work.

    Args:
        highest: end of the axis, the same for all charts that are compared.
    """
    at = number("at", axis=None, scale={"domain": [-0.7, len(found.iterations) - 0.3], "nice": False})
    y = {
        "scale": {"domain": [0, highest], "nice": True},
        "axis": {"title": "work of a GPU / mean of the iteration", "tickCount": 5},
    }
    iterations = found.iterations.tolist()
    spans = [
        {"at": place, "iteration": iterations[place], "least": short(least), "most": short(most)}
        for place, (least, most) in enumerate(zip(found.least.tolist(), found.greatest.tolist(), strict=True))
    ]
    points = [
        {"at": place, "work": short(work, 4)}
        for place, work in zip(found.point_iteration.tolist(), found.point_work.tolist(), strict=True)
    ]
    tips = tooltip(("iteration", "iteration"), ("least", "least work"), ("most", "most work"))
    spread = {"type": "rule", "stroke": "var(--line)", "strokeWidth": 6}
    point = {"type": "circle", "size": 16, "color": "var(--series-1)", "opacity": 0.6}
    top = {"type": "tick", "orient": "horizontal", "color": "var(--series-2)", "thickness": 3, "width": 9}
    layers = [
        layer(spans, spread, x=at, y=number("least", **y), y2="most", tooltip=tips),
        layer(points, point, x=at, y=number("work", **y)),
        layer(spans, top, x=at, y=number("most", **y), tooltip=tips),
        layer([{"at": 1}], {"type": "rule", "strokeDash": [4, 3]}, y=number("at", **y)),
    ]
    return Chart(
        name=name,
        title=title,
        text=text,
        spec=framed(240, *layers),
        header=("iteration", "least work / mean", "most work / mean"),
        rows=tuple((f"{each['iteration']:,}", f"{each['least']:.3f}", f"{each['most']:.3f}") for each in spans),
        is_wide=False,
    )
