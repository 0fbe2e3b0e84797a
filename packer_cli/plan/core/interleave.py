"""Orders an epoch's iterations, and so decides which ones share an optimizer step.

A step takes consecutive iterations. `alternate` shuffles all of them, so a step's share of each group and of long
samples varies by chance. `stratify` is proportionate stratified sampling: every stretch of the order has the groups,
and within a group the light and heavy iterations, in the proportions of the whole epoch. Price of
both: O(i log i) for i iterations.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.streams import next_uint64, shuffle, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids

StepMix = Literal["alternate", "stratified"]

NUM_STRATA = 10
"""Classes of work in a group; within a class the order is random. More classes gain nothing, and leave fewer
iterations to draw from, so that the same ones would be neighbours in every epoch."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: among the multiples of all irrationals, those of this one are spread most evenly."""


def interleave(mix: StepMix, group: Int64Array, work: Int64Array, state: NDArray[np.uint64]) -> Int32Array:
    """The order (int32[i]) of the iterations.

    Args:
        group: int64[i], group of each.
        work: int64[i], work of each, see `plan.core.cost`.
        state: uint64[1], advanced.
    """
    return stratify(group, work, state) if mix == "stratified" else alternate(len(group), state)


def alternate(num: int, state: NDArray[np.uint64]) -> Int32Array:
    """All iterations in a seeded shuffle."""
    order = np.arange(num, dtype=np.int32)
    shuffle(order, state)
    return order


def stratify(group: Int64Array, work: Int64Array, state: NDArray[np.uint64]) -> Int32Array:
    """Space each group's iterations evenly over the epoch, from a random start, with light and heavy ones mixed.

    A stretch that is a share x of the epoch holds a share x of each group's iterations, to within one iteration.
    """
    place = np.empty(len(group), dtype=np.float64)
    for g in range(int(group.max(initial=-1)) + 1):
        members = np.flatnonzero(group == g)
        order = members[spread_by_rank(work[members], state)]
        start = (int(next_uint64(state)) >> 11) * 2.0**-53
        place[order] = (np.arange(len(members)) + start) / max(1, len(members))
    return as_ids(np.argsort(place, kind="stable"))


def spread_by_rank(values: Int64Array, state: NDArray[np.uint64]) -> Int64Array:
    """An order (int64[n]) in which every stretch has values of all sizes.

    The k-th is taken near the quantile `frac(k * golden ratio + start)` (a Kronecker sequence, whose stretches are all
    of low discrepancy; Niederreiter, "Random Number Generation and Quasi-Monte Carlo Methods", 1992, section 3.1), at
    random among those of one of `NUM_STRATA` classes of equal size.
    """
    n = len(values)
    by_rank = shuffled(n, state)  # equal values in random order
    by_rank = by_rank[np.argsort(values[by_rank], kind="stable")]
    stratum = np.arange(n) * NUM_STRATA // max(1, n)
    by_rank = by_rank[np.lexsort((shuffled(n, state), stratum))]
    quantile = np.arange(n, dtype=np.uint64) * _GOLDEN + np.uint64(next_uint64(state))
    order = np.empty(n, dtype=np.int64)
    order[np.argsort(quantile, kind="stable")] = by_rank
    return order
