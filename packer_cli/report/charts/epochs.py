"""Predicted epochs side by side, where the time of the GPUs goes, and what runs when in one step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from packer_cli.plan.core.types import Int64Array
from packer_cli.report.charts.base import LABELS, Chart, color_of_parts, drawn, short
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import OverallFigures
from packer_cli.simulate.timeline import Timeline
from packer_cli.sizes import amount, counted

_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LEAST = 5e-4
"""Share of the time below which a part has no color of its own in any bar."""


def chart_of_epochs(epochs: Mapping[str, OverallFigures], own: str, origin: str) -> Chart:
    """Draw a bar for each epoch, as long as the epoch takes, in the order given.

    Args:
        epochs: by name.
        own: which of them is the user's.
        origin: how the times are predicted.
    """
    parts = [part for part in PARTS if any(each.split[part] >= _LEAST * each.seconds > 0 for each in epochs.values())]
    longest = max(each.seconds for each in epochs.values())
    unit, title = next((unit, name) for unit, name in _UNITS if longest >= unit or unit == 1)
    values = []
    for name, epoch in epochs.items():
        stop = 0.0
        for part in parts:
            share = epoch.split[part] / epoch.seconds if epoch.seconds else 0.0
            begin, stop = stop, stop + share * epoch.seconds / unit
            values.append(
                {"name": name, "part": LABELS[part], "from": short(begin), "to": short(stop), "share": short(share, 3)}
            )
    spec = drawn(
        "epochs",
        height=40 + 30 * len(epochs),
        bars=values,
        names=list(epochs),
        is_own=f"datum.value == {json.dumps(own)}",
        title=f"{title} of an epoch",
        parts=color_of_parts(parts),
    )
    return Chart(
        name="epochs",
        title="Time of an epoch",
        text=f"How long an epoch takes, and what the GPUs do in that time. {origin}",
        spec=spec,
        header=("", f"{title} an epoch", "GPU-days", "tokens/s a GPU", *(LABELS[part] for part in parts)),
        rows=tuple(
            (
                name,
                amount(epoch.seconds / unit),
                amount(epoch.gpu_days),
                f"{epoch.tokens_per_gpu_second:,.0f}",
                *(f"{epoch.split[part] / epoch.seconds:.1%}" if epoch.seconds else "0" for part in parts),
            )
            for name, epoch in epochs.items()
        ),
    )


_MOST_GPUS = 64


def chart_of_timeline(line: Timeline, num_gpus: int, seconds: float, name: str, title: str, text: str) -> Chart:
    """Draw a bar for each event, as high as its replica has GPUs.

    Args:
        seconds: end of the axis, the same for all charts that are compared.
    """
    shown = min(num_gpus, _MOST_GPUS)
    events = [
        {"gpu": first, "end": min(first + gpus, shown), "from": short(start, 6), "to": short(start + taken, 6),
         "part": LABELS[PARTS[part]], "iteration": iteration, "s": short(taken, 3)}
        for part, start, taken, first, gpus, iteration, _ in line.events.tolist()
        if first < shown
    ]  # fmt: skip
    parts = {number: part for number, part in enumerate(PARTS) if (line.events.part == number).any()}
    spec = drawn(
        "timeline",
        events=events,
        seconds=[0, seconds],
        gpus=[0, shown],
        ticks=list(range(0, shown, max(1, shown // 8))),
        parts=color_of_parts(parts.values()),
        starts=[{"at": short(start, 6)} for start in line.iterations.start.tolist()],
    )
    limit = f" The first {shown} of {num_gpus:,} GPUs." if shown < num_gpus else ""
    return Chart(
        name=name,
        title=title,
        text=text + limit,
        spec=spec,
        header=("iteration", "seconds", *(LABELS[part] for part in parts.values())),
        rows=tuple(_rows(line, parts, num_gpus)),
    )


def total_seconds(line: Timeline) -> float:
    """Return the seconds from the start of the first iteration to the end of the last."""
    last = line.iterations[-1]
    return float(last.start + last.seconds + last.tail)


def describe(line: Timeline, slot_tokens: Int64Array) -> str:
    """Say how long so many iterations with so many tokens take."""
    num, tokens = counted(len(line.iterations), "iteration"), int(slot_tokens.sum())
    return f"{num}, short and long ones as in the epoch, with {tokens:,} tokens: {amount(total_seconds(line))} s."


def _rows(line: Timeline, parts: Iterable[int], num_gpus: int) -> Iterator[tuple[str, ...]]:
    """Yield each iteration's seconds, and the share of the GPUs' time that each part takes."""
    for iteration, _, lasts, tail in line.iterations.tolist():
        own, seconds = line.events[line.events.iteration == iteration], lasts + tail
        taken = [float((own.seconds * own.num_gpus)[own.part == part].sum()) for part in parts]
        yield (f"{iteration:,}", amount(seconds), *(f"{each / seconds / num_gpus:.1%}" for each in taken))
