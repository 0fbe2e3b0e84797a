"""Charts of the balance of the GPUs: their work in some iterations, its ratios over the epoch, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.metrics import slot_contents
from packer_cli.plan.core.types import Float64Array, Int64Array, Plan
from packer_cli.report.charts.base import SERIES, Chart, color, drawn, evenly, short
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
    spans = [
        {"at": place, "iteration": iteration, "least": short(work[0]), "most": short(work[-1])}
        for place, (iteration, work) in enumerate(found.items())
    ]
    points = [{"at": place, "work": short(each, 4)} for place, work in enumerate(found.values()) for each in work]
    return Chart(
        name=name,
        title=title,
        text=text,
        spec=drawn("work", spans=spans, points=points, places=[-0.7, len(found) - 0.3], work=[0, highest]),
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
    schedule, slots = plan.epochs[0], slot_contents(plan)
    num_steps = schedule.num_steps
    num = min(most, num_steps)
    stretch = schedule.iteration_step * num // num_steps
    count = np.bincount(stretch, minlength=num)

    def sums(values: NDArray[np.generic], of: Int64Array = stretch) -> NDArray[np.float64]:
        return np.bincount(of, weights=values, minlength=num).astype(np.float64, copy=False)

    shared = {"ABR": slots.work, "DBR": slots.shared_tokens} | ({"CBR": slots.cost(linear)} if linear else {})
    ratios = {name: sums(slots.ratios(values)) / count for name, values in shared.items()}
    of_slots = stretch[slots.iteration]
    ratios["PR"] = 1 - sums(slots.real_tokens, of_slots) / sums(slots.row_length, of_slots)
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
    spec = drawn(
        "series",
        values=values,
        point={"size": 24} if len(steps) <= 40 else False,
        ratios=color("ratio", names, SERIES, symbolType="stroke", symbolSize=300),
        dashes={"domain": names, "range": [_DASHES[name] for name in names]},
    )
    columns = zip(*(series.tolist() for series in ratios.values()), strict=True)
    stretch = "each step" if num_iterations.max() == 1 else "stretches of the epoch"
    return Chart(
        name="series",
        title="Over the epoch",
        text="ABR is the share of attention time that GPUs wait for the slowest, DBR the same for tokens"
        + (", CBR the same for predicted cost" if "CBR" in names else "")
        + f", and PR the share of rows that is padding; means of {stretch}.",
        spec=spec,
        header=("from step", *names),
        rows=tuple(
            (f"{step:,}", *(ratio(short(value)) for value in row)) for step, row in zip(steps, columns, strict=True)
        ),
    )


class Choice(NamedTuple):
    """A plan of the same samples."""

    name: str
    kind: str
    """`this plan`, `strategy` or `balance`."""
    abr: float
    length_mix_spread: float


_SHAPES = {"this plan": "diamond", "strategy": "circle", "balance": "square"}


def chart_of_frontier(choices: Sequence[Choice]) -> Chart:
    """Draw a point for each plan; the lower left corner would be best."""
    places: dict[tuple[float, float], Choice] = {}
    for each in sorted(choices, key=lambda each: [*_SHAPES].index(each.kind)):
        places.setdefault((each.abr, each.length_mix_spread), each)
    shown = list(places.values())
    highest = max(each.abr for each in shown)
    spreads = [each.length_mix_spread for each in shown]
    low, high = min(spreads), max(spreads)
    room = max(0.02, 0.12 * (high - low))
    named = _named(shown, highest, high - low + 2 * room)
    points = [
        {"name": each.name, "kind": each.kind, "abr": short(each.abr), "mix": short(each.length_mix_spread),
         "label": each.name if each in named else "", "side": "right" if each.length_mix_spread > (low + high) / 2
         else "left"}
        for each in reversed(shown)  # The user's own is drawn last.
    ]  # fmt: skip
    kinds = [kind for kind in _SHAPES if any(each.kind == kind for each in shown)]
    spec = drawn(
        "frontier",
        points=points,
        left=[each for each in points if each["side"] == "left"],
        right=[each for each in points if each["side"] == "right"],
        mixes=[max(0.0, low - room), high + room],
        ratios=[0, max(highest * 1.1, 0.01)],
        colors=color("kind", kinds, [dict(zip(_SHAPES, SERIES, strict=False))[kind] for kind in kinds]),
        shapes=color("kind", kinds, [_SHAPES[kind] for kind in kinds]),
    )
    return Chart(
        name="frontier",
        title="Balance and randomness",
        text="Sorting packs by work evens out iterations, and mixes lengths less in a step. Each point is a plan of "
        "the same samples: lower waits less, further left is more random. The table names them all.",
        spec=spec,
        header=("plan", "kind", "ABR", "length mix spread"),
        rows=tuple((each.name, each.kind, ratio(each.abr), f"{each.length_mix_spread:.3f}") for each in shown),
    )


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
