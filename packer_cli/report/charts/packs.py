"""Chart of the samples that share a row: packs as stacked bars (HBP's figure 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer_cli.plan.core.types import Int32Array, Int64Array, Plan
from packer_cli.report.charts.base import (
    DASHED,
    LENGTHS,
    Chart,
    Spec,
    color,
    framed,
    layer,
    number,
    quarters,
    tokens_axis,
    tooltip,
)
from packer_cli.sizes import counted, format_tokens

_LOOKED_AT = 1 << 20
"""Lengths by which classes are chosen."""


def evenly(num: int, most: int) -> Int64Array:
    """Return at most `most` of the numbers below `num` (int64), evenly spread, with the first and the last.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.int64))


def length_classes(lengths: Int32Array, most: int = 6) -> tuple[int, ...]:
    """Return rising bounds, powers of two, of at most `most` classes of lengths; the last holds the longest.

    >>> length_classes(np.array([100, 300, 500, 100_000], dtype=np.int32))
    (512, 2048, 8192, 32768, 131072)
    """
    few = lengths[:: 1 + len(lengths) // _LOOKED_AT]
    low = int(np.ceil(np.log2(max(1, int(np.percentile(few, 10))))))
    high = int(np.ceil(np.log2(max(1, int(lengths.max(initial=1))))))
    step = max(1, -(-(high - low) // (most - 1)))
    exponents = range(high, max(low - 1, high - step * most), -step)
    return tuple(2**exponent for exponent in reversed(exponents))


_FEW = 12
"""Packs that fill the width; fewer leave room, for they are no wider."""
_LEAST_SHARE = 1 / 48
"""Share of a row: shorter samples are drawn together, class by class."""


def chart_of_packs(
    plan: Plan, group_id: int, classes: Sequence[int], name: str, title: str, most: int = 32
) -> Chart | None:
    """Draw packs of a group side by side, evenly spread over the epoch; None if the group has none.

    A segment is a sample, or several short ones, the longest first; its color says how long they are.
    O(packs + drawn samples).

    Args:
        classes: rising bounds of the lengths, see `length_classes`.
    """
    own, group = np.flatnonzero(plan.packs.group == group_id), plan.groups[group_id]
    if not len(own):
        return None
    names = [f"up to {format_tokens(bound)}" for bound in classes]
    packs = own[evenly(len(own), most)].tolist()
    segments = [_segments(plan, pack, place, classes, names) for place, pack in enumerate(packs)]
    wide = {"scale": {"domain": [0, max(len(packs), _FEW)], "nice": False}, "axis": None}
    high = {"scale": {"domain": [0, group.capacity], "nice": False}}
    stacked = layer(
        [each for bars in segments for each in bars],
        {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.6},
        x=number("pack", **wide),
        x2="end",
        y=number("begin", **high, axis=tokens_axis("tokens of the row", values=quarters(group.capacity))),
        y2="stop",
        color={**color("length", names, LENGTHS, title="tokens of a sample"), "type": "ordinal"},
        tooltip=tooltip(("id", "pack"), ("samples", "samples"), ("tokens", "tokens", ",d"), ("length", "each")),
    )
    line = layer([{"at": group.capacity}], DASHED, y=number("at", **high))
    shown = counted(len(packs), "pack")
    which = shown if len(packs) == len(own) else f"{shown} of {len(own):,}, evenly spread over the epoch"
    gpus = "one GPU runs each" if group.num_gpus == 1 else f"{group.num_gpus} GPUs run each together"
    return Chart(
        name=name,
        title=title,
        text=f"{which}; {gpus}. The dashed line is the capacity, {format_tokens(group.capacity)} tokens.",
        spec=framed(220, stacked, line),
        header=("pack", "samples", "tokens", "longest sample"),
        rows=tuple(
            (str(pack), f"{sum(each['samples'] for each in bars):,}", f"{bars[-1]['stop']:,}", bars[0]["length"])
            for pack, bars in zip(packs, segments, strict=True)
        ),
        is_wide=False,
    )


def _segments(plan: Plan, pack: int, place: int, classes: Sequence[int], names: Sequence[str]) -> list[Spec]:
    """Return the segments of the pack that is drawn at a place, as rows of data."""
    capacity = plan.groups[plan.packs.group[pack]].capacity
    pieces = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
    lengths = np.sort(plan.pieces.length[pieces])[::-1]
    of_class = np.searchsorted(classes, lengths)
    is_small = lengths < capacity * _LEAST_SHARE
    # A large sample is a segment of its own; the small ones of a class are one together.
    begins = np.ones(len(lengths), dtype=np.bool_)
    begins[1:] = ~is_small[1:] | ~is_small[:-1] | (of_class[1:] != of_class[:-1])
    first = np.flatnonzero(begins)
    ends = np.append(0, np.cumsum(lengths)).tolist()
    return [
        {"pack": place, "end": place + 0.86, "id": pack, "begin": ends[i], "stop": ends[j],
         "length": names[of_class[i]], "samples": j - i, "tokens": ends[j] - ends[i]}
        for i, j in zip(first.tolist(), np.append(first[1:], len(lengths)).tolist(), strict=True)
    ]  # fmt: skip
