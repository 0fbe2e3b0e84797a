"""Lengths of the samples, by source and by group, and the samples that share a row: packs as bars (HBP's figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array, Plan
from packer_cli.report.charts.base import SERIES, Chart, Spec, color, drawn, evenly
from packer_cli.simulate.figures import group_name
from packer_cli.sizes import counted, format_tokens

_EDGES = np.unique(np.ceil(2.0 ** (np.arange(63) / 2)).astype(np.int64))
"""Two bins for each doubling."""


class Histogram(NamedTuple):
    """Samples of k kinds in b bins; bin j holds lengths from `edges[j]` up to, and without, `edges[j + 1]`."""

    edges: Int64Array
    """int64[b+1]: tokens."""
    samples: Int64Array
    """int64[k, b]"""
    tokens: Int64Array
    """int64[k, b]"""


def histogram(lengths: Int32Array, kind: NDArray[np.integer] | None = None, num_kinds: int = 1) -> Histogram:
    """Count lengths by bin and kind. O(n).

    Args:
        lengths: int32[n], each at least 1.
        kind: int[n], of each, below `num_kinds`; None: all are of kind 0.
    """
    num_bins = len(_EDGES) - 1
    cell = np.searchsorted(_EDGES, lengths, side="right") - 1
    if kind is not None:
        cell += kind.astype(np.int64) * num_bins
    shape = num_kinds, num_bins
    samples = np.bincount(cell, minlength=num_kinds * num_bins).reshape(shape)
    # Sums of integers below 2^53 are exact in floats.
    tokens = np.bincount(cell, weights=lengths, minlength=num_kinds * num_bins).astype(np.int64).reshape(shape)
    used = np.flatnonzero(samples.any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Histogram(_EDGES[first : stop + 1], samples[:, first:stop], tokens[:, first:stop])


def group_of_pieces(plan: Plan) -> NDArray[np.int16]:
    """Return the group (int16[m]) in whose packs each piece is. O(m)."""
    group = np.empty(len(plan.pieces), dtype=np.int16)
    group[plan.packs.pieces] = np.repeat(plan.packs.group, np.diff(plan.packs.offsets))
    return group


_MOST_KINDS = 7
_REST = "others"


def charts_of_lengths(
    lengths: Int32Array, source: NDArray[np.integer] | None, names: Sequence[str], plan: Plan | None
) -> tuple[Chart, Chart]:
    """Draw samples by length, with a color for each source; and their tokens, with a color and a line for each group.

    Args:
        lengths: of the samples or, of a plan, of its pieces.
        source: int[n], of each; None: all are of one.
    """
    found = histogram(lengths, source, len(names))
    samples, names = _largest(found.samples, names)
    by = " and source" if len(names) > 1 else ""
    text = "Each bar counts the samples of a range of lengths; two ranges for each doubling."
    first = _chart("by-source", f"Samples by length{by}", text, found.edges, samples, names, "samples")
    title, text = "Tokens by length", "Each bar counts the tokens of the same samples"
    if plan is None:
        tokens = found.tokens.sum(axis=0, keepdims=True)
        text += ": few long ones may hold most of them."
        return first, _chart("by-tokens", title, text, found.edges, tokens, ("all",), "tokens")
    of_groups = histogram(lengths, group_of_pieces(plan), len(plan.groups))
    text += ", colored by the group in whose packs they are."
    if len(plan.groups) > 1:
        text += (
            " Lines mark the groups' capacities; short samples in a longer group fill the space that is left there."
        )
    groups, marks = zip(*((group_name(group), group.capacity) for group in plan.groups), strict=True)
    tokens, title = of_groups.tokens, f"{title} and group"
    return first, _chart("by-group", title, text, of_groups.edges, tokens, groups, "tokens", marks)


def _largest(samples: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
    """Return the sources with the most samples (int64[k, b]), and their names; the others are one."""
    if len(names) <= _MOST_KINDS:
        return samples, names
    order = np.argsort(-samples.sum(axis=1), kind="stable")
    kept, rest = np.sort(order[: _MOST_KINDS - 1]), order[_MOST_KINDS - 1 :]
    fewer = np.concatenate([samples[kept], samples[rest].sum(axis=0, keepdims=True)])
    return fewer, (*(names[i] for i in kept), _REST)


def _chart(
    name: str,
    title: str,
    text: str,
    edges: np.ndarray,
    counts: np.ndarray,
    names: Sequence[str],
    noun: str,
    marks: Sequence[int] | None = None,
) -> Chart:
    """Draw bars of counts (int64[k, b]) of k kinds between b + 1 edges, one above the other, and lines at marks."""
    stop = counts.cumsum(axis=0)
    begin = stop - counts
    bars = [
        {"from": int(edges[j]), "to": int(edges[j + 1]), "begin": int(begin[i, j]), "stop": int(stop[i, j]),
         "of": names[i], "count": int(counts[i, j])}
        for i, j in zip(*(each.tolist() for each in np.nonzero(counts)), strict=True)
    ]  # fmt: skip
    first, last = int(edges[0]), int(edges[-1])
    power = 2 if last < 64 * first else 8 if last > 4096 * first else 4
    spec = drawn(
        "lengths",
        bars=bars,
        ends=[first, last],
        ticks=[power**k for k in range(31) if first <= power**k <= last],
        kinds={**color("of", names, SERIES), **({} if len(names) > 1 else {"legend": None})},
        noun=noun,
        marks=None if marks is None else [{"at": mark} for mark in marks if first < mark < last],
    )
    return Chart(
        name=f"lengths-{name}",
        title=title,
        text=text,
        spec=spec,
        header=("tokens of a sample", *names),
        rows=tuple(
            (f"{format_tokens(int(edges[j]))} to under {format_tokens(int(edges[j + 1]))}",
             *(f"{number:,}" for number in counts[:, j].tolist()))
            for j in range(counts.shape[1])
        ),
        is_wide=False,
    )  # fmt: skip


_LENGTHS = tuple(f"var(--length-{number})" for number in range(1, 7))
"""Colors of lengths, from short to long."""
_LOOKED_AT = 1 << 20
"""Lengths by which classes are chosen."""


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
    spec = drawn(
        "packs",
        segments=[each for bars in segments for each in bars],
        packs=[0, max(len(packs), _FEW)],
        rows=[0, group.capacity],
        ticks=[group.capacity * part // 4 for part in range(5)],  # Whole k where the capacity is.
        lengths={**color("length", names, _LENGTHS, title="tokens of a sample"), "type": "ordinal"},
        capacity=[{"at": group.capacity}],
    )
    shown = counted(len(packs), "pack")
    which = shown if len(packs) == len(own) else f"{shown} of {len(own):,}, evenly spread over the epoch"
    gpus = "one GPU runs each" if group.num_gpus == 1 else f"{group.num_gpus} GPUs run each together"
    return Chart(
        name=name,
        title=title,
        text=f"{which}; {gpus}. The dashed line is the capacity, {format_tokens(group.capacity)} tokens.",
        spec=spec,
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
