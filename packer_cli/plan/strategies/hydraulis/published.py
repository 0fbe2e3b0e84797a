"""Hydraulis as printed (arXiv 2412.07894, and its code): the candidates, and stage 1 of a step.

What is the paper's:

- The candidates are traced from the dynamic program over the lengths of the whole data set, with the printed cost
  (`candidates.printed_seconds`), for every greatest length, after one layout of a single scheme. None is timed, and no
  neighbor is added.
- Stage 1 weighs a pipeline by `sum of costs + (pp - 1) largest cost`, without the constants of its micro-batches. In
  each of 50 shuffled orders it first deals the samples that only the largest pipeline holds. Each other sample goes to
  the pipeline after which the slowest of all is fastest; of equal ones to the last empty pipeline, else to the first,
  which holds most. The order whose slowest pipeline is fastest stays.
- A step takes the candidate on which stage 2 leaves its slowest pipeline fastest.

What is ours, since the printed rules do not say or would stop:

- An earlier version of the code crashes on a single pipeline. Here, that pipeline takes all samples.
- The code rejects a layout once its best order leaves a pipeline empty. Here, that is a load of 0.
- GPUs that a traced layout leaves idle get more pipelines, and a layout on which some stay idle is left out.
- The single scheme is that of the optimizer's states in the paper, which the user chooses. Here it is the one that is
  fastest by the printed cost, of those that hold the longest sample.
- At most `MOST_PROCESS_GROUPS` candidates stay, spread evenly over the greatest lengths: each may add a process group
  to every GPU, and the checker allows no more.
- Stage 2 is `step.divide`, which says what differs.

Price: a step costs O(orders n p) for each candidate that its bound does not rule out; 0.7 ms for 200 samples on 16
pipelines. The paper tries all candidates, with the same answer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.check import MOST_PROCESS_GROUPS
from packer_cli.plan.core.streams import shuffle
from packer_cli.plan.core.types import Float64Array, Int64Array, UInt64Array
from packer_cli.plan.kernels.timed_dealing import copy_to
from packer_cli.plan.strategies.hydraulis.candidates import LengthTable, find_layouts, printed_seconds
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.layouts import ChosenLayouts, fill_up, of_one_scheme, require_held
from packer_cli.plan.strategies.hydraulis.step import StepPlan, divide_all


def printed_layouts(table: LengthTable, costs: SchemeCosts, num_gpus: int) -> ChosenLayouts:
    """The paper's candidates, that which holds most first. Price: that of the dynamic program.

    Args:
        table: of the whole data set, in one step; one of the layouts holds the longest sample.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    traced = find_layouts(table, costs, num_gpus, as_printed=True).counts
    whole = [fill_up(counts, table, costs, num_gpus) for counts in traced]
    keys = dict.fromkeys(
        tuple(each.tolist()) for each in [_of_one(table, costs, num_gpus), *whole] if each is not None
    )
    found = ChosenLayouts.of([*keys], costs)
    require_held(int(found.longest.max(initial=0)), int(table.longest[-1]), costs, num_gpus)
    falling = np.argsort(-found.longest, kind="stable")
    kept = falling[np.unique(np.linspace(0, len(keys) - 1, min(len(keys), MOST_PROCESS_GROUPS)).astype(np.int64))]
    return ChosenLayouts(found.counts[kept], found.longest[kept])


def _of_one(table: LengthTable, costs: SchemeCosts, num_gpus: int) -> Int64Array | None:
    """The layout of one scheme that is fastest by the printed cost and holds the longest sample, if there is one."""
    number, tokens, work = table.sums[:, -1].tolist()
    longest, best, least = int(table.longest[-1]), None, np.inf
    for counts in of_one_scheme(costs, num_gpus):
        kind = int(np.argmax(counts))
        seconds = printed_seconds(costs.rates, kind, number, tokens, work, longest) / int(counts[kind])
        whole = fill_up(counts, table, costs, num_gpus)
        if costs.capacity[kind] >= longest and whole is not None and seconds < least:
            best, least = whole, seconds
    return best


def plan_as_printed(
    falling: Int64Array, kinds: Int64Array, costs: SchemeCosts, restarts: int, state: UInt64Array, bound: float
) -> StepPlan:
    """`step.plan_sorted` with the printed stage 1.

    Args:
        restarts: shuffled orders, at least 1.
    """
    pipeline_of, slot_of = np.zeros((2, len(falling)), dtype=np.int64)
    times, seconds = np.zeros(len(kinds)), np.inf
    if deal_as_printed(falling, kinds, *costs.arrays, restarts, state, pipeline_of) < np.inf:
        seconds = float(divide_all(falling, kinds, *costs.arrays, pipeline_of, slot_of, times))
    return StepPlan(pipeline_of, slot_of, times, seconds, bound)


@njit(cache=True)
def deal_as_printed(
    lengths: Int64Array,
    kinds: Int64Array,
    rates: Float64Array,
    capacity: Int64Array,
    restarts: int,
    state: UInt64Array,
    pipeline_of: Int64Array,
) -> float:
    """Stage 1: write to `pipeline_of` (int64[n]); returns the greatest load, in seconds without constants.

    Infinite, and nothing is written, if no pipeline holds the longest sample. O(restarts n p).

    Args:
        lengths: int64[n], falling.
        kinds: int64[p], by falling capacity.
        restarts: shuffled orders, at least 1.
        state: of the shuffles.
    """
    num, num_pipelines = len(lengths), len(kinds)
    if num and lengths[0] > capacity[kinds[0]]:
        return np.inf
    first = 0  # Samples that only the largest pipeline holds: all of them, if it is alone.
    while first < num and (num_pipelines == 1 or lengths[first] > capacity[kinds[1]]):
        first += 1
    order = np.arange(num, dtype=np.int32)
    dealt = np.zeros(num, dtype=np.int64)
    work, tokens, longest = np.empty((3, num_pipelines), dtype=np.int64)
    best = np.inf
    for _ in range(restarts):
        shuffle(order[first:], state)
        work[:] = 0
        tokens[:] = 0
        longest[:] = 0
        slowest = 0.0
        for k in range(num):
            i = order[k]
            length = lengths[i]
            at, least = 0, np.inf
            for p in range(1 if k < first else num_pipelines):
                kind = kinds[p]
                if length > capacity[kind]:
                    break
                greatest = max(longest[p], length)
                load = rates[0, kind] * (work[p] + length * length) + rates[1, kind] * (tokens[p] + length)
                load += rates[3, kind] * (rates[0, kind] * greatest + rates[1, kind]) * greatest
                after = max(slowest, load)
                if after < least or (after == least and tokens[p] == 0):
                    at, least = p, after
            dealt[i] = at
            work[at] += length * length
            tokens[at] += length
            longest[at] = max(longest[at], length)
            slowest = least
        if slowest < best:
            best = slowest
            copy_to(dealt, pipeline_of)
        if first == num:
            break
    return best
