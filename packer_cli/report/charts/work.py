"""Attention work of the GPUs of an iteration, before and after balancing (HBP's figure 6)."""

from __future__ import annotations

from packer_cli.report.charts.base import Chart, Spec, framed, short
from packer_cli.report.data import WorkOfRanks


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
