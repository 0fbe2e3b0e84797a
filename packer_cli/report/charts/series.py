"""The ratios from the first step to the last."""

from __future__ import annotations

from packer_cli.report.charts.base import SERIES, Chart, color, framed, layer, number, short, tooltip
from packer_cli.report.data import StepSeries
from packer_cli.sizes import ratio

_DASHES = {"ABR": [1, 0], "CBR": [8, 3], "DBR": [4, 3], "PR": [1.5, 2.5]}


def chart_of_series(found: StepSeries) -> Chart:
    """Draw a line for each ratio."""
    names = list(found.ratios)
    steps = found.first_step.tolist()
    values = [
        {"step": step, "ratio": name, "value": short(value)}
        for name, series in found.ratios.items()
        for step, value in zip(steps, series.tolist(), strict=True)
    ]
    dashes = {"domain": names, "range": [_DASHES[name] for name in names]}
    step_axis = {"title": "step", "grid": False, "format": ",d", "tickMinStep": 1}
    lines = layer(
        values,
        {"type": "line", "strokeWidth": 2, "point": {"size": 24} if len(steps) <= 40 else False},
        x=number("step", axis=step_axis, scale={"nice": False}),
        y=number("value", axis={"title": "ratio (0 is best)", "tickCount": 5}),
        color=color("ratio", names, SERIES, symbolType="stroke", symbolSize=300),
        strokeDash={"field": "ratio", "type": "nominal", "scale": dashes},
        tooltip=[*tooltip(("ratio",), ("step", "from step", ",d")), {"field": "value", "format": ".4f"}],
    )
    columns = zip(*(series.tolist() for series in found.ratios.values()), strict=True)
    stretch = "each step" if found.num_iterations.max() == 1 else "stretches of the epoch"
    return Chart(
        name="series",
        title="Over the epoch",
        text="ABR is the share of attention time that GPUs wait for the slowest, DBR the same for tokens"
        + (", CBR the same for predicted cost" if "CBR" in names else "")
        + f", and PR the share of rows that is padding; means of {stretch}.",
        spec=framed(240, lines),
        header=("from step", *names),
        rows=tuple(
            (f"{step:,}", *(ratio(short(value)) for value in row)) for step, row in zip(steps, columns, strict=True)
        ),
    )
