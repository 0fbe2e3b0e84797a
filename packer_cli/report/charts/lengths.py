"""Lengths of the samples, by source, and by the group in whose packs they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array, Plan
from packer_cli.report.charts.base import (
    DASHED,
    SERIES,
    Chart,
    color,
    framed,
    layer,
    number,
    tokens_axis,
    tooltip,
)
from packer_cli.sizes import format_tokens

_EDGES = np.unique(np.ceil(2.0 ** (np.arange(63) / 2)).astype(np.int64))
"""Two bins for each doubling."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
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
    samples = np.bincount(cell, minlength=num_kinds * num_bins)
    # Sums of integers below 2^53 are exact in floats.
    tokens = np.bincount(cell, weights=lengths, minlength=num_kinds * num_bins).astype(np.int64)
    shape = num_kinds, num_bins
    used = np.flatnonzero(samples.reshape(shape).any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Histogram(
        edges=_EDGES[first : stop + 1],
        samples=samples.reshape(shape)[:, first:stop],
        tokens=tokens.reshape(shape)[:, first:stop],
    )


def group_of_pieces(plan: Plan) -> NDArray[np.int16]:
    """Return the group (int16[m]) in whose packs each piece is. O(m)."""
    group = np.empty(len(plan.pieces), dtype=np.int16)
    group[plan.packs.pieces] = np.repeat(plan.packs.group, np.diff(plan.packs.offsets))
    return group


_MOST_KINDS = 7
_REST = "others"


def chart_of_sources(found: Histogram, names: Sequence[str]) -> Chart:
    """Draw samples by length, with a color for each source."""
    samples, names = _largest(found.samples, names)
    by = " and source" if len(names) > 1 else ""
    text = "Each bar counts the samples of a range of lengths; two ranges for each doubling."
    return _chart("by-source", f"Samples by length{by}", text, found.edges, samples, names, "samples")


def chart_of_groups(found: Histogram, names: Sequence[str], capacities: Sequence[int]) -> Chart:
    """Draw tokens by the length of their samples, a color for each group, and a line at each group's capacity."""
    text = "Each bar counts the tokens of the same samples, colored by the group in whose packs they are."
    if len(names) > 1:
        text += (
            " Lines mark the groups' capacities; short samples in a longer group fill the space that is left there."
        )
    return _chart(
        "by-group", "Tokens by length and group", text, found.edges, found.tokens, names, "tokens", capacities
    )


def chart_of_tokens(found: Histogram) -> Chart:
    """Draw tokens by the length of their samples, of what is not planned."""
    text = "Each bar counts the tokens of the same samples: few long ones may hold most of them."
    tokens = found.tokens.sum(axis=0, keepdims=True)
    return _chart("by-tokens", "Tokens by length", text, found.edges, tokens, ("all",), "tokens")


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
    marks: Sequence[int] = (),
) -> Chart:
    """Draw bars of counts (int64[k, b]) of k kinds between b + 1 edges, one above the other, and lines at marks."""
    stop = counts.cumsum(axis=0)
    begin = stop - counts
    values = [
        {"from": int(edges[j]), "to": int(edges[j + 1]), "begin": int(begin[i, j]), "stop": int(stop[i, j]),
         "of": names[i], "count": int(counts[i, j])}
        for i, j in zip(*(each.tolist() for each in np.nonzero(counts)), strict=True)
    ]  # fmt: skip
    scale = {"type": "log", "base": 2, "domain": [int(edges[0]), int(edges[-1])], "nice": False}
    power = 2 if edges[-1] < 64 * edges[0] else 8 if edges[-1] > 4096 * edges[0] else 4
    ticks = [power**k for k in range(31) if edges[0] <= power**k <= edges[-1]]
    axis = tokens_axis("tokens of a sample", values=ticks, grid=False)
    bars = layer(
        values,
        {"type": "rect", "stroke": "var(--panel)", "strokeWidth": 0.5},
        x=number("from", scale=scale, axis=axis),
        x2="to",
        y=number("begin", title=noun, axis={"labelExpr": "format(datum.value, '~s')", "tickCount": 5}),
        y2="stop",
        color={**color("of", names, SERIES), **({} if len(names) > 1 else {"legend": None})},
        tooltip=tooltip(("of", "of"), ("from", "from, tokens", ",d"), ("to", "to under", ",d"), ("count", noun, ",d")),
    )
    inside = [{"at": mark} for mark in marks if edges[0] < mark < edges[-1]]
    lines = layer(inside, DASHED, x=number("at", scale=scale))
    return Chart(
        name=f"lengths-{name}",
        title=title,
        text=text,
        spec=framed(260, bars, lines) if marks else framed(260, bars),
        header=("tokens of a sample", *names),
        rows=tuple(
            (f"{format_tokens(int(edges[j]))} to under {format_tokens(int(edges[j + 1]))}",
             *(f"{number:,}" for number in counts[:, j].tolist()))
            for j in range(counts.shape[1])
        ),
        is_wide=False,
    )  # fmt: skip
