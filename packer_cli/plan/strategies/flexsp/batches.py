"""FlexSP as published (arXiv 2412.01523): the data arrive in batches, and each is planned for itself.

A batch is cut into micro-batches of similar lengths (section 4.2): samples by falling length, in consecutive parts
whose most tokens are least, from as few parts as the GPUs' memory allows to four more. Each part is solved by
`micro_batch` or `milp`, and the number of parts with the least total time stays.

Use it to train on batches exactly as they come, or to see what `arrange` gains: a batch has few samples of each
length, so its groups are less even, and its last micro-batch less full. Price: a few milliseconds a micro-batch that
is tried with `search`, up to the time limit with `milp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.flexsp.iterations import MixedIterations, joined, one_iteration
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, solve_micro_batch

TRIALS = 5
"""Numbers of micro-batches to try, from the least on."""

Solver = Literal["search", "milp"]


class PlannedBatches(NamedTuple):
    """Iterations and the batch of each."""

    iterations: MixedIterations
    batch: Int64Array
    """int64[i]: a batch is an optimizer step, and each of its micro-batches an iteration."""


def plan_batches(
    lengths: Int32Array,
    costs: DegreeCosts,
    num_gpus: int,
    batch_tokens: int,
    *,
    trials: int = TRIALS,
    solver: Solver = "search",
    num_buckets: int | None = 16,
    time_limit: float = 5.0,
) -> PlannedBatches:
    """Plan consecutive batches of samples (int32[n], in the order of training, none longer than every capacity).

    Args:
        batch_tokens: most tokens of a batch; a longer sample is a batch of its own.
        trials: numbers of micro-batches to try.
        solver: `search`, or the integer program, which the paper uses.
        num_buckets, time_limit: of the integer program, see `milp.solve_exactly`. The paper has 16 buckets and 5 to
            15 seconds; what a time limit cuts off depends on the machine.
    """
    costs = costs.up_to(num_gpus)
    assert lengths.max(initial=0) <= costs.capacity[-1]

    def solve(part: Int32Array) -> MicroBatch:
        if solver == "search":
            return solve_micro_batch(lengths[part], costs, num_gpus)
        from packer_cli.plan.strategies.flexsp.milp import solve_exactly

        return solve_exactly(
            lengths[part], costs, num_gpus, num_buckets=num_buckets, time_limit=time_limit
        ).micro_batch

    micro_batches: list[tuple[Int32Array, MicroBatch]] = []
    batch: list[int] = []
    ends = np.cumsum(lengths, dtype=np.int64)
    begin = number = 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + batch_tokens, side="right")))
        falling = as_ids(begin + np.argsort(-lengths[begin:end], kind="stable"))
        solved = _solve_batch(falling, lengths, costs, num_gpus, trials, solve)
        micro_batches += solved
        batch += [number] * len(solved)
        begin, number = end, number + 1
    return PlannedBatches(joined([one_iteration(*each) for each in micro_batches]), np.array(batch, dtype=np.int64))


def _solve_batch(
    falling: Int32Array,
    lengths: Int32Array,
    costs: DegreeCosts,
    num_gpus: int,
    trials: int,
    solve: Callable[[Int32Array], MicroBatch],
) -> list[tuple[Int32Array, MicroBatch]]:
    """The micro-batches of one batch (int32[n], samples by falling length)."""
    tokens = lengths[falling].astype(np.int64)
    fits = int((costs.capacity * (num_gpus // costs.degrees)).max())
    least = max(1, -(-int(tokens.sum()) // fits))
    best: list[tuple[Int32Array, MicroBatch]] = []
    fastest = np.inf
    for num_parts in range(least, len(falling) + 1):
        if num_parts >= least + trials and best:
            break
        parts = np.split(falling, cut_evenly(tokens, num_parts))
        solved = []
        seconds = 0.0
        for part in parts:
            solved.append((part, solve(part)))
            seconds += solved[-1][1].seconds
            if seconds >= fastest:
                break
        if seconds < fastest:
            best, fastest = solved, seconds
    assert best  # A sample alone always fits.
    return best


def cut_evenly(tokens: NDArray[np.int64], num_parts: int) -> Int64Array:
    """Where to cut a sequence (int64[n], each at least 1) into at most `num_parts` parts, so that the greatest sum is
    least; int64[parts - 1]. The paper's dynamic program, by binary search. O(parts log n log sum).

    >>> cut_evenly(np.array([5, 4, 3, 3]), 2).tolist()
    [2]
    """
    ends = np.cumsum(tokens)
    low, high = max(int(tokens.max()), -(-int(ends[-1]) // num_parts)), int(ends[-1])
    cuts = np.empty(0, dtype=np.int64)
    while low <= high:
        middle = (low + high) // 2
        found: list[int] = []
        before = 0
        while before < ends[-1] and len(found) <= num_parts:
            found.append(int(np.searchsorted(ends, before + middle, side="right")))
            before = int(ends[found[-1] - 1])
        if before >= ends[-1] and len(found) <= num_parts:
            cuts, high = np.array(found[:-1], dtype=np.int64), middle - 1
        else:
            low = middle + 1
    return cuts
