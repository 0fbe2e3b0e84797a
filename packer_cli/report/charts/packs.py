"""Which samples share a row: packs as stacked bars (HBP's figure 1), and their attention work."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.report.charts.base import INK, LENGTHS, Chart, Spec, framed, quarters, scale_of, short, tokens_axis
from packer_cli.report.data import DrawnPacks, WorkOfRanks
from packer_cli.sizes import counted, format_tokens

_FEW = 12
"""Packs that fill the width; fewer leave room, for they are no wider."""


def chart_of_packs(drawn: DrawnPacks, classes: Sequence[int], name: str, title: str) -> Chart:
    """Packs side by side; a segment is a sample, or several short ones, and its color says how long they are."""
    names = [f"up to {format_tokens(bound)}" for bound in classes]
    place = {pack: number for number, pack in enumerate(drawn.packs.tolist())}
    values = [
        {"pack": place[each.pack], "end": place[each.pack] + 0.86, "id": each.pack, "begin": each.begin,
         "stop": each.stop, "length": names[each.length_class], "samples": each.num_samples,
         "tokens": each.stop - each.begin}
        for each in drawn.segments
    ]  # fmt: skip
    wide = {"type": "quantitative", "scale": {"domain": [0, max(len(place), _FEW)], "nice": False}, "axis": None}
    high = {"type": "quantitative", "scale": {"domain": [0, drawn.capacity], "nice": False}}
    bars: Spec = {
        "data": {"values": values},
        "mark": {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.6},
        "encoding": {
            "x": {"field": "pack", **wide},
            "x2": {"field": "end"},
            "y": {"field": "begin", **high, "axis": tokens_axis("tokens of the row", values=quarters(drawn.capacity))},
            "y2": {"field": "stop"},
            "color": {
                "field": "length",
                "type": "ordinal",
                **scale_of(names, LENGTHS, title="tokens of a sample"),
            },
            "tooltip": [
                {"field": "id", "title": "pack"},
                {"field": "samples", "title": "samples"},
                {"field": "tokens", "title": "tokens", "format": ",d"},
                {"field": "length", "title": "each"},
            ],
        },
    }
    line: Spec = {
        "data": {"values": [{"at": drawn.capacity}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "stroke": INK, "opacity": 0.7},
        "encoding": {"y": {"field": "at", **high}},
    }
    shown = counted(len(place), "pack")
    which = shown if len(place) == drawn.num_packs else f"{shown} of {drawn.num_packs:,}, evenly spread over the epoch"
    gpus = "one GPU runs each" if drawn.num_gpus == 1 else f"{drawn.num_gpus} GPUs run each together"
    return Chart(
        name=name,
        title=title,
        text=f"{which}; {gpus}. The dashed line is the capacity, {format_tokens(drawn.capacity)} tokens.",
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
    """A point for each replica of some iterations, and a line from the least to the most work.

    Args:
        highest: end of the axis, the same for all charts that are compared.
    """
    x = {"type": "quantitative", "axis": None, "scale": {"domain": [-0.7, len(found.iterations) - 0.3], "nice": False}}
    y = {
        "type": "quantitative",
        "scale": {"domain": [0, highest], "nice": True},
        "axis": {"title": "work of a GPU / mean of the iteration", "tickCount": 5},
    }
    iterations = found.iterations.tolist()
    spans = [
        {"at": at, "iteration": iterations[at], "least": short(least), "most": short(most)}
        for at, (least, most) in enumerate(zip(found.least.tolist(), found.greatest.tolist(), strict=True))
    ]
    points = [
        {"at": at, "work": short(work, 4)}
        for at, work in zip(found.point_iteration.tolist(), found.point_work.tolist(), strict=True)
    ]
    tooltip = [
        {"field": "iteration", "title": "iteration"},
        {"field": "least", "title": "least work"},
        {"field": "most", "title": "most work"},
    ]
    layers: list[Spec] = [
        {
            "data": {"values": spans},
            "mark": {"type": "rule", "stroke": "var(--line)", "strokeWidth": 6},
            "encoding": {
                "x": {"field": "at", **x},
                "y": {"field": "least", **y},
                "y2": {"field": "most"},
                "tooltip": tooltip,
            },
        },
        {
            "data": {"values": points},
            "mark": {"type": "circle", "size": 16, "color": "var(--series-1)", "opacity": 0.6},
            "encoding": {"x": {"field": "at", **x}, "y": {"field": "work", **y}},
        },
        {
            "data": {"values": spans},
            "mark": {"type": "tick", "orient": "horizontal", "color": "var(--series-2)", "thickness": 3, "width": 9},
            "encoding": {"x": {"field": "at", **x}, "y": {"field": "most", **y}, "tooltip": tooltip},
        },
        {
            "data": {"values": [{"at": 1}]},
            "mark": {"type": "rule", "strokeDash": [4, 3]},
            "encoding": {"y": {"field": "at", **y}},
        },
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
