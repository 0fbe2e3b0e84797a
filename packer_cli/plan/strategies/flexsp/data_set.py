"""The whole data set at once: iterations of unlike degrees, each of packs of near-equal predicted time. Our own.

FlexSP (arXiv 2412.01523) plans each batch for itself (`batches`). With all lengths at hand, every sample can run at
the degree of its least GPU-seconds, and packs of equal time still find each other: `packing`, then `iterations`. The
waiting that remains is about one iteration in all. In a small data set that is much; then lower limits on a pack's
seconds are tried, which move the longest samples to higher degrees.

Price: 0.5 s for a million samples. On mixes with a long tail the predicted time is within a thousandth of
`least_total_seconds` for a million samples, and within a few hundredths for some thirty iterations.

Iterations are as alike inside as HBP's sorted ones: packs with much attention work meet each other. `window` limits
that to a number of iterations at a time, whose samples are drawn at random.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.sorting import count_lengths
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts, Float64Array
from packer_cli.plan.strategies.flexsp.iterations import (
    MixedIterations,
    form_iterations,
    improve_iterations,
    iteration_seconds,
    joined,
)
from packer_cli.plan.strategies.flexsp.packing import pack_by_degree

_LIMITS = (0.95, 0.88, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Limits on a pack's seconds to try, as shares of the slowest pack's."""
_GOOD = 0.005
"""No limits are tried if the total is within this share of the bound."""


def plan_data_set(
    lengths: Int32Array, costs: DegreeCosts, num_gpus: int, *, seed: int = 0, window: int = 0
) -> MixedIterations:
    """Plan all samples (int32[n], none longer than every capacity): each ends up in one pack, and no pack is empty.

    Degrees of an iteration add up to at most `num_gpus`; GPUs beyond them are idle, in few iterations. The slowest
    iteration of a window comes first: shuffle them afterwards. Equal inputs give equal plans.

    Args:
        window: about so many iterations share a random part of the samples; 0 for all. A lower number mixes lengths
            better over the run and costs time.
    """
    costs = costs.up_to(num_gpus)
    assert lengths.max(initial=0) <= costs.capacity[-1]
    num_windows = 1
    if window:
        full = num_gpus // costs.degrees * costs.capacity
        num_windows = max(1, round(int(lengths.sum(dtype=np.int64)) / (window * int(full.max()))))
    if num_windows == 1:
        return _plan(lengths, costs, num_gpus, seed)
    order = shuffled(len(lengths), rng_state(seed, Stream.BALANCE))
    parts = []
    for number, members in enumerate(np.array_split(order, num_windows)):
        part = _plan(lengths[members], costs, num_gpus, int(rng_state(seed, Stream.PACKING, number)[0]))
        parts.append(part._replace(samples=members[part.samples]))
    return joined(parts)


def least_total_seconds(lengths: Int32Array, costs: DegreeCosts, num_gpus: int) -> float:
    """No plan takes less: all GPUs are always busy, and samples run at their cheapest degrees in full packs. O(n)."""
    costs = costs.up_to(num_gpus)
    count = count_lengths(lengths)
    length = np.flatnonzero(count)
    return float(count[length] @ costs.gpu_seconds(length)[1]) / num_gpus


def _plan(lengths: Int32Array, costs: DegreeCosts, num_gpus: int, seed: int) -> MixedIterations:
    best, seconds = _plan_within(lengths, costs, num_gpus, seed, np.inf)
    total = seconds.sum()
    if total > least_total_seconds(lengths, costs, num_gpus) * (1 + _GOOD):
        for share in _LIMITS:
            other, of_other = _plan_within(lengths, costs, num_gpus, seed, share * seconds.max())
            if of_other.sum() < total:
                best, total = other, of_other.sum()
    return best


def _plan_within(
    lengths: Int32Array, costs: DegreeCosts, num_gpus: int, seed: int, limit: float
) -> tuple[MixedIterations, Float64Array]:
    formed = form_iterations(pack_by_degree(lengths, costs, seed, limit), lengths, costs, num_gpus)
    found = improve_iterations(formed, lengths, costs, num_gpus)
    return found, iteration_seconds(found, lengths, costs)
