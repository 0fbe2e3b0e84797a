"""Stage 1 of Hydraulis (arXiv 2412.07894): which samples of a step run on which pipeline.

The published rule deals samples in 50 shuffled orders, each to the pipeline after which the slowest
of all is fastest. It weighs a pipeline by `sum of costs + (pp - 1) largest cost`, breaks ties towards the largest
pipelines, where it heaps short samples, and has no answer where a pipeline stays empty. Here:

1. Loads are `least_pipeline_seconds`, which knows the constants and what stage 2 can reach.
2. Starts: longest first to the pipeline that finishes first; first-fit at the least target time, large pipelines first
   and small ones first. Shuffled orders, as published, are no better.
3. Each start is improved by moving samples away from the slowest pipeline, or exchanging them.

Empty pipelines are a load of 0 like any other. Price: 0.2 to 2 ms for 200 samples on 16 pipelines, bounded by counts.

`deal_as_printed` is the published rule: it weighs a pipeline without the constants of its micro-batches. In each order
it first deals the samples that only the largest pipeline holds. Each other sample goes to the pipeline after which the
slowest of all is fastest; of equal ones to the last empty pipeline, else to the first, which holds most. The order
whose slowest pipeline is fastest stays. What is ours, since the printed rules do not say or would stop: an earlier
version of the code crashes on a single pipeline, which here takes all samples; and the code rejects a layout once its
best order leaves a pipeline empty, which here is a load of 0. Price: O(orders n p).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.cost import KernelCosts
from packer_cli.plan.core.streams import shuffle
from packer_cli.plan.core.types import Int32Array, Int64Array, UInt64Array
from packer_cli.plan.kernels.timed_dealing import copy_to
from packer_cli.plan.strategies.hydraulis.candidates import least_pipeline_seconds

RESTARTS = 50
"""Shuffled orders to deal, as in the paper."""
_EXCHANGES = cast("int", np.int64(200))
"""With which a start is improved."""
_ZERO = cast("int", np.int64(0))
"""Zero of int64, since numba compiles a function again for each Python literal passed to it."""
_PAIRS = 4000
"""Samples, and pairs of them, that an exchange is chosen from; some of them, if there are more."""
_HALVINGS = 12
_DEALT = 100_000
"""Samples times pipelines that first-fit looks at, in as many halvings as this allows."""
_GAIN = 5e-4
"""Share by which a change must make the slowest pipeline faster."""


class Step(NamedTuple):
    """The samples of a step, and its pipelines."""

    lengths: Int64Array
    """int64[n], falling."""
    kinds: Int64Array
    """int64[p]: schemes, by falling capacity."""
    costs: KernelCosts


@njit(cache=True)
def deal_to_pipelines(pipelines: Step, state: UInt64Array, pipeline_of: Int64Array) -> float:
    """Write to `pipeline_of` (int64[n]), and return the seconds of the slowest pipeline: the kernel.

    Args:
        state: has no part in it.
    """
    lengths, kinds, costs = pipelines
    num = len(lengths)
    if num == 0:
        return 0.0
    if lengths[0] > costs.capacity[kinds[0]]:
        return np.inf
    sums = np.zeros((5, len(kinds)), dtype=np.int64)
    dealt = np.zeros(num, dtype=np.int64)
    order = np.arange(num, dtype=np.int32)
    limit = least = np.inf
    for start in range(3):
        if start == 0:
            seconds = _greedily(pipelines, order, dealt, sums, _ZERO, False)
        else:
            seconds = _first_fit(pipelines, limit, start == 2, dealt, sums)
        if seconds < limit:
            limit = seconds
            seconds = _improve(pipelines, dealt, sums)
            if seconds < least:
                least = seconds
                copy_to(dealt, pipeline_of)
    return least


@njit(cache=True, no_cpython_wrapper=True)
def _after(costs: KernelCosts, kind: int, sums: Int64Array, p: int, length: int) -> float:
    """Predict the seconds of a pipeline with one more sample.

    `sums` has work, tokens, longest, number and second longest of each.
    """
    return least_pipeline_seconds(
        costs, kind, sums[0, p] + length * length, sums[1, p] + length, max(sums[2, p], length), sums[3, p] + 1
    )


@njit(cache=True, no_cpython_wrapper=True)
def _add(sums: Int64Array, p: int, length: int) -> None:
    sums[0, p] += length * length
    sums[1, p] += length
    sums[2, p] = max(sums[2, p], length)
    sums[3, p] += 1


@njit(cache=True, no_cpython_wrapper=True)
def _printed_load(costs: KernelCosts, kind: int, sums: Int64Array, p: int, length: int) -> float:
    """Predict the published load of a pipeline with one more sample."""
    longest = max(sums[2, p], length)
    load = costs.rates[0, kind] * (sums[0, p] + length * length) + costs.rates[1, kind] * (sums[1, p] + length)
    load += costs.rates[3, kind] * (costs.rates[0, kind] * longest + costs.rates[1, kind]) * longest
    return float(load)


@njit(cache=True)
def _greedily(
    pipelines: Step, order: Int32Array, pipeline_of: Int64Array, sums: Int64Array, num_first: int, is_printed: bool
) -> float:
    """Deal each sample of the order to the pipeline that would end first; of equals, to the last, which is small.

    Args:
        num_first: samples at the start of the order that only the first pipeline may take.
        is_printed: deal by the published rule.
    """
    lengths, kinds, costs = pipelines
    sums[:] = 0
    slowest = 0.0
    for k in range(len(order)):
        i = order[k]
        at, least = _ZERO, np.inf
        for p in range(1 if k < num_first else len(kinds)):
            if lengths[i] > costs.capacity[kinds[p]]:
                break
            if is_printed:
                seconds = max(slowest, _printed_load(costs, kinds[p], sums, p, lengths[i]))
                is_better = seconds < least or (seconds == least and sums[1, p] == 0)
            else:
                seconds = _after(costs, kinds[p], sums, p, lengths[i])
                is_better = seconds <= least
            if is_better:
                at, least = p, seconds
        pipeline_of[i] = at
        _add(sums, at, lengths[i])
        slowest = max(slowest, least)
    return slowest


@njit(cache=True)
def _first_fit(pipelines: Step, limit: float, is_reversed: bool, pipeline_of: Int64Array, sums: Int64Array) -> float:
    """Deal samples, longest first, to the first pipeline that stays within a target time, the least that is found.

    Args:
        limit: seconds that are already reached.
        is_reversed: start from the smallest pipeline, and not from the largest.
    """
    lengths, kinds, costs = pipelines
    num = len(lengths)
    dealt = np.empty(num, dtype=np.int64)
    low, high, found = 0.0, limit, np.inf
    for _ in range(max(2, min(_HALVINGS, _DEALT // (num * len(kinds))))):
        target = (low + high) / 2
        sums[:] = 0
        slowest, fits = 0.0, True
        for i in range(num):
            fits = False
            for step in range(len(kinds)):
                p = len(kinds) - 1 - step if is_reversed else step
                if lengths[i] > costs.capacity[kinds[p]]:
                    continue
                seconds = _after(costs, kinds[p], sums, p, lengths[i])
                if seconds <= target:
                    dealt[i] = p
                    _add(sums, p, lengths[i])
                    slowest = max(slowest, seconds)
                    fits = True
                    break
            if not fits:
                break
        if fits:
            high = found = slowest
            copy_to(dealt, pipeline_of)
        else:
            low = target
    return found


@njit(cache=True)
def _improve(pipelines: Step, pipeline_of: Int64Array, sums: Int64Array) -> float:
    """Move samples away from the slowest pipeline, or exchange them for others, while that helps.

    Each step takes the change after which the slower of the two pipelines takes least. O(samples of the slowest
    pipeline times n) a step.
    """
    lengths, kinds, costs = pipelines
    num = len(lengths)
    seconds = np.empty(len(kinds))
    for p in range(len(kinds)):
        seconds[p] = _sum_up(pipelines, pipeline_of, sums, p)
    for turn in range(_EXCHANGES):
        slow = int(np.argmax(seconds))
        kind = kinds[slow]
        least = seconds[slow] * (1 - _GAIN)
        given, taken, to = -1, -1, -1
        stride = 1 + sums[3, slow] * num // _PAIRS
        for i in range(num):
            if pipeline_of[i] != slow or (i > 0 and lengths[i] == lengths[i - 1] and pipeline_of[i - 1] == slow):
                continue
            length = lengths[i]
            longest = sums[4, slow] if length == sums[2, slow] else sums[2, slow]
            work, tokens = sums[0, slow] - length * length, sums[1, slow] - length
            left = least_pipeline_seconds(costs, kind, work, tokens, longest, sums[3, slow] - 1)
            if left >= least:
                continue
            for p in range(len(kinds)):
                if p != slow and length <= costs.capacity[kinds[p]]:
                    after = max(left, _after(costs, kinds[p], sums, p, length))
                    if after < least:
                        least, given, taken, to = after, i, -1, p
            for j in range((i + turn) % stride, num, stride):
                p = pipeline_of[j]
                other = lengths[j]
                if p == slow or other == length or length > costs.capacity[kinds[p]] or other > costs.capacity[kind]:
                    continue
                after = least_pipeline_seconds(
                    costs, kind, work + other * other, tokens + other, max(longest, other), sums[3, slow]
                )
                if after >= least:
                    continue
                rest = sums[4, p] if other == sums[2, p] else sums[2, p]
                after = max(
                    after,
                    least_pipeline_seconds(
                        costs,
                        kinds[p],
                        sums[0, p] - other * other + length * length,
                        sums[1, p] - other + length,
                        max(rest, length),
                        sums[3, p],
                    ),
                )
                if after < least:
                    least, given, taken, to = after, i, j, p
        if given < 0:
            break
        pipeline_of[given] = to
        if taken >= 0:
            pipeline_of[taken] = slow
        for p in (slow, to):
            seconds[p] = _sum_up(pipelines, pipeline_of, sums, p)
    return float(seconds[np.argmax(seconds)])


@njit(cache=True, no_cpython_wrapper=True)
def _sum_up(pipelines: Step, pipeline_of: Int64Array, sums: Int64Array, p: int) -> float:
    """Write the sums of a pipeline, and return its seconds."""
    lengths, kinds, costs = pipelines
    sums[:, p] = 0
    for i in range(len(lengths)):
        if pipeline_of[i] == p:
            if sums[3, p] == 1:
                sums[4, p] = lengths[i]
            _add(sums, p, lengths[i])
    return least_pipeline_seconds(costs, kinds[p], sums[0, p], sums[1, p], sums[2, p], sums[3, p])


@njit(cache=True)
def deal_as_printed(pipelines: Step, state: UInt64Array, pipeline_of: Int64Array, restarts: int = RESTARTS) -> float:
    """Write stage 1 to `pipeline_of` (int64[n]), and return the greatest load, in seconds without constants.

    The load is infinite, and nothing is written, if no pipeline holds the longest sample. O(restarts n p).

    Args:
        state: of the shuffles.
        restarts: shuffled orders, at least 1.
    """
    lengths, kinds, costs = pipelines
    num, num_pipelines = len(lengths), len(kinds)
    if num and lengths[0] > costs.capacity[kinds[0]]:
        return np.inf
    first = 0  # Samples that only the largest pipeline holds: all of them, if it is alone.
    while first < num and (num_pipelines == 1 or lengths[first] > costs.capacity[kinds[1]]):
        first += 1
    order = np.arange(num, dtype=np.int32)
    dealt = np.zeros(num, dtype=np.int64)
    sums = np.empty((5, num_pipelines), dtype=np.int64)
    best = np.inf
    for _ in range(restarts):
        shuffle(order[first:], state)
        slowest = _greedily(pipelines, order, dealt, sums, first, True)
        if slowest < best:
            best = slowest
            copy_to(dealt, pipeline_of)
        if first == num:
            break
    return best
