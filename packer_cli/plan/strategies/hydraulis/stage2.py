"""One optimizer step on given pipelines: stage 1, then stage 2 of Hydraulis (arXiv 2412.07894).

For stage 2, the micro-batches of one pipeline, the paper solves an integer program for each of up to 20 numbers of
micro-batches v, and takes the one with the least `(pp - 1 + v) max t_j`. Here it is the least
`sum t_j + (pp - 1) max t_j`. Numbers are tried from the most promising on, by longest-first dealing and exchanges, and
a bound ends the search: the answer is usually a few tenths of a percent from it. A program for the pipelines of few
samples would gain nothing: on real lengths none of those that decided a step was 1 % over its bound.

Price: 0.05 to 2 ms a pipeline, bounded by counts and not by a clock, so that equal inputs give equal plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.bounds import bound_of_runs
from packer_cli.plan.core.cost import KernelCosts
from packer_cli.plan.core.types import Float64Array, Int64Array, UInt64Array
from packer_cli.plan.kernels.timed_dealing import Dealt, copy_to, deal, even_out
from packer_cli.plan.strategies.hydraulis.stage1 import Step, deal_to_pipelines


class StepPlan(NamedTuple):
    """The micro-batches of one step, on p pipelines."""

    pipeline_of: Int64Array
    """int64[n]: pipeline of each sample."""
    slot_of: Int64Array
    """int64[n]: micro-batch of each sample, numbered from 0 in each pipeline; none is empty."""
    pipeline_seconds: Float64Array
    """float64[p]; 0 for an idle pipeline."""
    seconds: float
    """Seconds of the slowest pipeline; infinite if no pipeline holds the longest sample."""


Deal = Callable[..., float]
"""A kernel of stage 1, with the arguments of `deal_to_pipelines`."""


def plan_step(step: Step, state: UInt64Array, deal: Deal = deal_to_pipelines) -> StepPlan:
    """Plan a step. Price: 0.3 to 5 ms for 200 samples.

    Args:
        state: of the shuffles.
        deal: stage 1.
    """
    pipeline_of, slot_of = np.zeros((2, len(step.lengths)), dtype=np.int64)
    times, seconds = np.zeros(len(step.kinds)), np.inf
    if deal(step, state, pipeline_of) < np.inf:
        seconds = float(divide_all(step, pipeline_of, slot_of, times))
    return StepPlan(pipeline_of, slot_of, times, seconds)


@njit(cache=True)
def divide_all(step: Step, pipeline_of: Int64Array, slot_of: Int64Array, pipeline_seconds: Float64Array) -> float:
    """Run stage 2 on each pipeline of `pipeline_of`: fill the last two arrays, and return seconds."""
    lengths, kinds, costs = step
    num = len(lengths)
    members = np.empty(num, dtype=np.int64)
    own, slots = np.empty(num, dtype=np.int64), np.empty(num, dtype=np.int64)
    slowest = 0.0
    for p in range(len(kinds)):
        count = 0
        for i in range(num):
            if pipeline_of[i] == p:
                members[count], own[count] = i, lengths[i]
                count += 1
        pipeline_seconds[p] = divide(own[:count], costs, kinds[p], slots[:count])
        for i in range(count):
            slot_of[members[i]] = slots[i]
        slowest = max(slowest, pipeline_seconds[p])
    return slowest


TRIALS = 20
"""Numbers of micro-batches to try, as in the paper."""
_EXCHANGES = cast("int", np.int64(200))
"""With which the micro-batches of one number are evened out."""
_PAIRS = 400_000
"""Pairs of samples that the exchanges of one number may look at, in as many as this allows."""
_DEALT = 100_000
"""Samples times micro-batches that all numbers together may deal, but for three of them."""
_ENOUGH = 5e-4
"""Share of a pipeline's time by which more exchanges could lower it, at which they stop."""


@njit(cache=True)
def divide(lengths: Int64Array, costs: KernelCosts, kind: int, slot_of: Int64Array) -> float:
    """Divide the samples of a pipeline, falling lengths within its capacity, into micro-batches; return its seconds.

    None is empty.

    Args:
        slot_of: int64[n], written to: micro-batch of each sample.
    """
    num = len(lengths)
    if num == 0:
        return 0.0
    tokens, work = np.int64(0), np.int64(0)
    for i in range(num):
        tokens += lengths[i]
        work += lengths[i] * lengths[i]
    constant, waiting = costs.rates[2, kind], costs.rates[3, kind]
    total = costs.rates[0, kind] * work + costs.rates[1, kind] * tokens
    alone = (costs.rates[0, kind] * lengths[0] + costs.rates[1, kind]) * lengths[0]
    fewest = bound_of_runs(lengths, np.ones_like(lengths), costs.capacity[kind])
    middle = float(fewest)
    if waiting > 0.0:
        middle = total / alone
        if constant > 0.0:
            middle = min(middle, np.sqrt(waiting * total / constant))
    most = max(fewest, min(num, int(tokens / costs.rates[4, kind])))
    below = min(max(int(middle), fewest), most)
    above = below + 1

    best = np.inf
    dealt = np.empty(num, dtype=np.int64)
    slot_tokens, slot_work = np.empty(num, dtype=np.int64), np.empty(num, dtype=np.int64)
    tried, dealt_pairs = 0, 0
    while below >= fewest or above <= most or (above <= num and best == np.inf):
        of_below, of_above = np.inf, np.inf
        if below >= fewest:
            of_below = total + below * constant + waiting * (max(total / below, alone) + constant)
        if above <= most or (above <= num and best == np.inf):
            of_above = total + above * constant + waiting * (max(total / above, alone) + constant)
        # Times rise to both sides of the middle, so no number further away is below these bounds.
        if min(of_below, of_above) >= best or (
            best < np.inf and (tried >= TRIALS or (tried >= 3 and dealt_pairs > _DEALT))
        ):
            break
        if of_below <= of_above:
            v = below
            below -= 1
        else:
            v = above
            above += 1
        greatest = max(total / v, alone)
        if num > v:  # Two of any v + 1 samples share a micro-batch.
            pair = lengths[v - 1] * lengths[v - 1] + lengths[v] * lengths[v]
            greatest = max(
                greatest, costs.rates[0, kind] * pair + costs.rates[1, kind] * (lengths[v - 1] + lengths[v])
            )
        least = total + v * constant + waiting * (greatest + constant)
        if least >= best:
            continue
        tried += 1
        dealt_pairs += num * v
        kinds, slots = np.full(v, kind), Dealt(dealt, slot_tokens[:v], slot_work[:v])
        found = deal(lengths, kinds, costs, np.inf, False, slots)
        if found == np.inf:
            found = deal(lengths, kinds, costs, np.inf, True, slots)
        if found == np.inf:
            continue
        enough = greatest + constant
        if waiting > 0.0:
            enough += _ENOUGH * least / waiting
            if found > enough:
                steps = min(_EXCHANGES, 1 + _PAIRS // ((num // v + 1) * (num + v)))
                found = even_out(lengths, kinds, costs, steps, enough, slots)
        seconds = total + v * constant + waiting * found
        if seconds < best:
            best = seconds
            copy_to(dealt, slot_of)
    return best
