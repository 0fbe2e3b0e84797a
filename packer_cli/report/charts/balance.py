"""Charts of the balance of the GPUs: their work in some iterations, and its ratios from the first step to the last."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.metrics import iteration_figures, slot_contents
from packer_cli.plan.core.types import Float64Array, Int64Array, Plan
from packer_cli.report.charts.base import SERIES, Chart, color, framed, layer, number, short, tooltip
from packer_cli.report.charts.packs import evenly
from packer_cli.sizes import ratio

_MOST_RANKS = 48


def work_of_ranks(plan: Plan, most: int = 24) -> dict[int, Float64Array]:
    """Measure attention work per GPU of the replicas of some iterations, evenly spread over the epoch.

    Of many replicas, some are drawn; those with the most and the least are among them. Price: O(pieces + slots).

    Returns:
        By iteration, the work of the replicas that are drawn, rising, as a multiple of the mean of its GPUs.
    """
    slots = slot_contents(plan)
    iteration, gpus = slots.replicas
    work = slots.of_replicas(slots.work)
    first = np.searchsorted(iteration, np.arange(plan.epochs[0].num_iterations + 1))
    mean = np.add.reduceat(work, first[:-1]) / np.add.reduceat(gpus, first[:-1])
    chosen = np.flatnonzero(mean > 0)
    drawn = {}
    for place in chosen[evenly(len(chosen), most)].tolist():
        own = slice(int(first[place]), int(first[place + 1]))
        rising = np.sort(work[own] / gpus[own] / mean[place])
        drawn[place] = rising[evenly(len(rising), _MOST_RANKS)]
    return drawn


def chart_of_work(found: Mapping[int, Float64Array], highest: float, name: str, title: str, text: str) -> Chart:
    """Draw a point for each replica of some iterations, and a line from the least to the most work.

    Args:
        found: the work of these replicas, see `work_of_ranks`.
        highest: end of the axis, the same for all charts that are compared.
    """
    at = number("at", axis=None, scale={"domain": [-0.7, len(found) - 0.3], "nice": False})
    y = {
        "scale": {"domain": [0, highest], "nice": True},
        "axis": {"title": "work of a GPU / mean of the iteration", "tickCount": 5},
    }
    spans = [
        {"at": place, "iteration": iteration, "least": short(work[0]), "most": short(work[-1])}
        for place, (iteration, work) in enumerate(found.items())
    ]
    points = [{"at": place, "work": short(each, 4)} for place, work in enumerate(found.values()) for each in work]
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


def step_series(
    plan: Plan, linear: int = 0, most: int = 100
) -> tuple[Int64Array, Int64Array, dict[str, Float64Array]]:
    """Divide an epoch into b stretches of about equally many steps. Price: O(pieces + slots).

    Args:
        linear: tokens, see `plan.core.cost`; 0 leaves CBR out.
        most: stretches.

    Returns:
        The first step of each stretch, int64[b]; its number of iterations, int64[b]; and ABR, DBR, CBR where it is
        known, and PR (float64[b]): means of the stretch's iterations, and for PR its padding over its token slots.
    """
    schedule, figures = plan.epochs[0], iteration_figures(plan, linear=linear)
    num_steps = schedule.num_steps
    num = min(most, num_steps)
    stretch = schedule.iteration_step * num // num_steps
    count = np.bincount(stretch, minlength=num)

    def sums(values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.bincount(stretch, weights=values, minlength=num).astype(np.float64, copy=False)

    ratios = {"ABR": sums(figures.abr) / count, "DBR": sums(figures.dbr) / count}
    if figures.cbr is not None:
        ratios["CBR"] = sums(figures.cbr) / count
    ratios["PR"] = 1 - sums(figures.tokens) / sums(figures.token_slots)
    first_step = -(-np.arange(num) * num_steps // num)
    return first_step, count, ratios


_DASHES = {"ABR": [1, 0], "CBR": [8, 3], "DBR": [4, 3], "PR": [1.5, 2.5]}


def chart_of_series(plan: Plan, linear: int = 0) -> Chart:
    """Draw a line for each ratio of `step_series`."""
    first_step, num_iterations, ratios = step_series(plan, linear)
    names, steps = list(ratios), first_step.tolist()
    values = [
        {"step": step, "ratio": name, "value": short(value)}
        for name, series in ratios.items()
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
    columns = zip(*(series.tolist() for series in ratios.values()), strict=True)
    stretch = "each step" if num_iterations.max() == 1 else "stretches of the epoch"
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
