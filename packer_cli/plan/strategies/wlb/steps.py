"""What every packer of this package returns, and its figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.strategies.wlb.arrival import Arrivals


class PackedSteps(NamedTuple):
    """Steps of N micro-batches over the m documents of the arrivals."""

    row_of: Int64Array
    """int64[m]: `step * N + micro-batch` of each document. A micro-batch may be empty; a step is not."""
    arrival: Int64Array
    """int64[m]: the step in which each document arrived."""
    num_carried: int = 0
    """Documents that found no room where they were first tried."""
    thresholds: tuple[int, ...] = ()
    """Tokens, rising: lengths from which documents waited in a queue each."""


def without_empty_steps(packed: PackedSteps, num_micro_batches: int) -> PackedSteps:
    """The same, its steps renumbered where some are empty: a trainer would fetch the next batch at once. O(m)."""
    step = packed.row_of // num_micro_batches
    num_steps = int(max(step.max(initial=-1), packed.arrival.max(initial=-1))) + 1
    is_used = np.zeros(num_steps, dtype=np.bool_)
    is_used[step] = True
    if is_used.all():
        return packed
    before: Int64Array = np.cumsum(is_used) - is_used  # An empty step becomes the one after it.
    row_of = before[step] * num_micro_batches + packed.row_of % num_micro_batches
    return packed._replace(row_of=row_of, arrival=before[packed.arrival])


def imbalances(arrivals: Arrivals, packed: PackedSteps) -> NDArray[np.float64]:
    """`work_imbalances` of the packed steps (float64[s])."""
    return work_imbalances(arrivals.lengths, packed.row_of, arrivals.num_micro_batches, arrivals.linear)


def work_imbalances(
    lengths: Int32Array, row_of: Int64Array, num_micro_batches: int, linear: int
) -> NDArray[np.float64]:
    """WLB-LLM's imbalance of each step (float64[s]): the greatest work of its micro-batches over their mean. O(m).

    Args:
        lengths: int32[m]
        row_of: int64[m], as in `PackedSteps`.
        linear: tokens, see `plan.core.cost`.
    """
    length = lengths.astype(np.float64)
    num_rows = (int(row_of.max(initial=-1)) // num_micro_batches + 1) * num_micro_batches
    work = np.bincount(row_of, weights=length * (length + linear), minlength=num_rows).reshape(-1, num_micro_batches)
    return work.max(axis=1) / work.mean(axis=1)


def mean_delay(arrivals: Arrivals, packed: PackedSteps) -> float:
    """Steps between a token's arrival and its training, earlier or later, on average. O(m)."""
    steps = np.abs(packed.row_of // arrivals.num_micro_batches - packed.arrival)
    return int(steps @ arrivals.lengths.astype(np.int64)) / int(arrivals.lengths.sum(dtype=np.int64))
