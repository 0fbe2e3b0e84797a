"""How long samples are: histograms of any number of lengths in a few dozen bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array, Plan

_BLOCK = 1 << 20
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
    """Count lengths by bin and kind. O(n), block by block.

    Args:
        lengths: int32[n], each at least 1.
        kind: int[n], of each, below `num_kinds`; None: all are of kind 0.
    """
    num_bins = len(_EDGES) - 1
    samples = np.zeros(num_kinds * num_bins, dtype=np.int64)
    tokens = np.zeros(num_kinds * num_bins, dtype=np.int64)
    for first in range(0, len(lengths), _BLOCK):
        block = lengths[first : first + _BLOCK]
        cell = np.searchsorted(_EDGES, block, side="right") - 1
        if kind is not None:
            cell += kind[first : first + _BLOCK].astype(np.int64) * num_bins
        samples += np.bincount(cell, minlength=len(samples))
        # Sums of integers below 2^53 are exact in floats.
        tokens += np.bincount(cell, weights=block, minlength=len(tokens)).astype(np.int64)
    shape = num_kinds, num_bins
    used = np.flatnonzero(samples.reshape(shape).any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    return Histogram(
        edges=_EDGES[first : stop + 1],
        samples=samples.reshape(shape)[:, first:stop],
        tokens=tokens.reshape(shape)[:, first:stop],
    )


def group_of_pieces(plan: Plan) -> NDArray[np.int16]:
    """The group (int16[m]) in whose packs each piece is. O(m)."""
    group = np.empty(len(plan.pieces), dtype=np.int16)
    group[plan.packs.pieces] = np.repeat(plan.packs.group, np.diff(plan.packs.offsets))
    return group


def length_classes(lengths: Int32Array, most: int = 6) -> tuple[int, ...]:
    """Rising bounds, powers of two, that divide the lengths into at most `most` classes; the last holds the longest.

    >>> length_classes(np.array([100, 300, 500, 100_000], dtype=np.int32))
    (512, 2048, 8192, 32768, 131072)
    """
    few = lengths[:: 1 + len(lengths) // _BLOCK]
    low = int(np.ceil(np.log2(max(1, int(np.percentile(few, 10))))))
    high = int(np.ceil(np.log2(max(1, int(lengths.max(initial=1))))))
    step = max(1, -(-(high - low) // (most - 1)))
    exponents = range(high, max(low - 1, high - step * most), -step)
    return tuple(2**exponent for exponent in reversed(exponents))
