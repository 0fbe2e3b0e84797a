"""Micro-batches of at most W tokens, as trainers run them: WLB-LLM's baselines (arXiv 2503.17924, section 3.3).

`as_it_comes` is what a trainer does without planning. The others pack a window of several global batches at a time,
longest document first, each to the micro-batch of least attention work that has room. A window has as many tokens as
its micro-batches hold, which whole documents rarely fill exactly, and the paper does not say what becomes of the rest.
Here it joins the next window. The rest are the shortest documents, so a few of the very short ones wait for long.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.kernels.balance.sort import spread
from packer_cli.plan.packing.ilp.minmax import min_max_work
from packer_cli.plan.strategies.wlb.arrival import Arrivals, PackedSteps, work_imbalances

Improve = Callable[[Int32Array, Int64Array, int], Int64Array]
"""(lengths by falling length, row of each, number of rows) -> row of each"""


def as_it_comes(arrivals: Arrivals) -> PackedSteps:
    """One row after another. O(m).

    Args:
        arrivals: no document reaches over a multiple of the window.
    """
    row_of = (np.cumsum(arrivals.lengths, dtype=np.int64) - 1) // arrivals.window
    return PackedSteps(row_of, arrivals.batch_of)


def pack_by_greed(arrivals: Arrivals, num_batches: int) -> PackedSteps:
    """Windows of so many global batches. O(m N num_batches)."""
    return _pack_windows(arrivals, num_batches, lambda lengths, row_of, num_rows: row_of)


def pack_by_program(arrivals: Arrivals, num_batches: int, time_limit: float) -> PackedSteps:
    """The same documents in each window, dealt by the integer program (`packing.ilp.minmax`, eq. 1).

    The program minimises the greatest attention work of a window, and leaves the other micro-batches as they happen to
    be below it. Where its steps are no more even, those of greed stand. Price: exponential, up to
    `time_limit` seconds a window.
    """
    num_micro_batches = arrivals.num_micro_batches

    def solve(lengths: Int32Array, row_of: Int64Array, num_rows: int) -> Int64Array:
        found = min_max_work(lengths, row_of, num_rows, arrivals.window, time_limit)
        solved = _by_falling_work(lengths, found.pack_of)
        imbalance = [
            work_imbalances(lengths, rows, num_micro_batches, arrivals.linear).sum() for rows in (row_of, solved)
        ]
        return solved if imbalance[1] < imbalance[0] else row_of

    return _pack_windows(arrivals, num_batches, solve)


def _pack_windows(arrivals: Arrivals, num_batches: int, improve: Improve) -> PackedSteps:
    lengths, batches, num_micro_batches = arrivals.lengths, arrivals.batches, arrivals.num_micro_batches
    row_of, is_carried = np.empty(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.bool_)
    left = np.empty(0, dtype=np.int64)
    batch = step = 0
    state = rng_state(arrivals.seed, Stream.ARRIVAL, 1)
    while batch < arrivals.num_batches or len(left):
        until = min(batch + num_batches, arrivals.num_batches)
        num_steps = until - batch
        if not num_steps:
            of_step = num_micro_batches * arrivals.window
            num_steps = min(num_batches, -(-int(lengths[left].sum(dtype=np.int64)) // of_step))
        documents = np.concatenate([left, np.arange(batches[batch], batches[until])])
        documents = documents[np.argsort(-lengths[documents], kind="stable")]
        falling, num_rows = as_ids(np.arange(len(documents))), num_steps * num_micro_batches
        row = spread(lengths[documents], falling, arrivals.window, num_rows, evens_tokens=False).astype(np.int64)
        is_dealt = row >= 0
        left, dealt = documents[~is_dealt], documents[is_dealt]
        is_carried[left] = True
        row = _by_falling_work(lengths[dealt], row[is_dealt])
        row = improve(lengths[dealt], row, num_rows)
        num_steps = int(row.max()) // num_micro_batches + 1
        position = shuffled(num_steps, state).astype(
            np.int64
        )  # Else each window would begin with its longest documents.
        row_of[dealt] = (step + position[row // num_micro_batches]) * num_micro_batches + row % num_micro_batches
        batch, step = until, step + num_steps
    return PackedSteps(row_of, arrivals.batch_of, int(is_carried.sum()))


def _by_falling_work(lengths: Int32Array, row_of: Int64Array) -> Int64Array:
    """Renumber the rows (int64[n]) by falling attention work, so that those of a step are alike; empty ones last."""
    work = np.zeros(int(row_of.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(work, row_of, lengths.astype(np.int64) ** 2)
    number = np.empty(len(work), dtype=np.int64)
    number[np.argsort(-work, kind="stable")] = np.arange(len(work))
    return number[row_of]
