"""Predicted epochs side by side, and where the time of the GPUs goes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from packer_cli.report.charts.base import LABELS, Chart, Spec, framed, legend_of, scale_of, short
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import OverallFigures
from packer_cli.sizes import amount

_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LEAST = 5e-4
"""Share of the time below which a part has no color of its own in any bar."""


def chart_of_epochs(epochs: Mapping[str, OverallFigures], own: str, origin: str) -> Chart:
    """A bar for each epoch, as long as it takes, in the order given.

    Args:
        epochs: by name.
        own: which of them is the user's.
        origin: how the times are predicted.
    """
    parts = [
        part for part in PARTS if any(each.split[part] >= _LEAST * each.gpu_hours > 0 for each in epochs.values())
    ]
    longest = max(each.seconds for each in epochs.values())
    unit, title = next((unit, name) for unit, name in _UNITS if longest >= unit or unit == 1)
    values = []
    for name, epoch in epochs.items():
        stop = 0.0
        for part in parts:
            share = epoch.split[part] / epoch.gpu_hours if epoch.gpu_hours else 0.0
            begin, stop = stop, stop + share * epoch.seconds / unit
            values.append(
                {"name": name, "part": LABELS[part], "from": short(begin), "to": short(stop), "share": short(share, 3)}
            )
    labels, ranges = legend_of(parts)
    y = {
        "field": "name",
        "type": "nominal",
        "sort": list(epochs),
        "axis": {
            "title": None,
            "labelLimit": 190,
            "labelFontWeight": {
                "condition": {"test": f"datum.value == {json.dumps(own)}", "value": "bold"},
                "value": "normal",
            },
            "ticks": False,
            "domain": False,
        },
    }
    bars: Spec = {
        "data": {"values": values},
        "mark": {"type": "bar", "height": {"band": 0.72}},
        "encoding": {
            "y": y,
            "x": {"field": "from", "type": "quantitative", "axis": {"title": f"{title} of an epoch", "tickCount": 6}},
            "x2": {"field": "to"},
            "color": {"field": "part", "type": "nominal", **scale_of(labels, ranges)},
            "tooltip": [
                {"field": "name"},
                {"field": "part", "title": "GPUs are"},
                {"field": "share", "title": "share of their time", "format": ".1%"},
            ],
        },
    }
    return Chart(
        name="epochs",
        title="Time of an epoch",
        text=f"How long an epoch takes, and what the GPUs do in that time. {origin}",
        spec=framed(40 + 30 * len(epochs), bars),
        header=("", f"{title} an epoch", "GPU-days", "tokens/s a GPU", *labels),
        rows=tuple(
            (
                name,
                amount(epoch.seconds / unit),
                amount(epoch.gpu_days),
                f"{epoch.tokens_per_gpu_second:,.0f}",
                *(f"{epoch.split[part] / epoch.gpu_hours:.1%}" if epoch.gpu_hours else "0" for part in parts),
            )
            for name, epoch in epochs.items()
        ),
    )
