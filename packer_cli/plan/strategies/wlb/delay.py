"""Micro-batches of any length up to a limit, and long documents that wait for others of their length.

WLB-LLM, arXiv 2503.17924, algorithm 1. A document with `threshold_i <= length < threshold_(i+1)` waits in FIFO queue i
until N of them can go to the N micro-batches of a step. All others are packed in the step in which they arrive: what
the step before left over first, then by falling length, each to the micro-batch of least work, or to the shortest if
that one has no room.

Where we differ from the print: a document as long as the capacity is placed (`<=`, not `<`), and when the data ends,
queues release what they hold. Price: O(m N) and a sort of each step's documents.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.strategies.wlb.arrival import Arrivals
from packer_cli.plan.strategies.wlb.steps import PackedSteps, without_empty_steps


def pack_with_queues(arrivals: Arrivals, capacity: int, thresholds: Int64Array) -> PackedSteps:
    """Pack step by step; steps follow the last batch until no document is left.

    Args:
        capacity: most tokens of a micro-batch, at least the window: S_max, what the memory holds.
        thresholds: int64[n], rising, of the queues. Without any, nothing waits but what finds no room.
    """
    queue = np.searchsorted(thresholds, arrivals.lengths, side="right") - 1
    waiting = np.argsort(queue, kind="stable")  # The documents of each queue, in the order of arrival.
    begin = np.searchsorted(queue[waiting], np.arange(len(thresholds) + 1))
    row_of = np.empty(len(queue), dtype=np.int64)
    num_micro_batches = arrivals.num_micro_batches
    num_carried = _pack(
        arrivals.lengths, arrivals.batches, num_micro_batches, capacity, arrivals.linear, queue, waiting, begin, row_of
    )
    packed = PackedSteps(row_of, arrivals.batch_of, int(num_carried), tuple(thresholds.tolist()))
    return without_empty_steps(packed, num_micro_batches)


@njit(cache=True)
def _pack(
    lengths: NDArray[np.int32],
    batches: NDArray[np.int64],
    num_micro_batches: int,
    capacity: int,
    linear: int,
    queue: NDArray[np.int64],
    waiting: NDArray[np.int64],
    begin: NDArray[np.int64],
    row_of: NDArray[np.int64],
) -> int:
    """Write to `row_of`; returns how many documents found no room in a step, counted once each.

    Args:
        queue: int64[m], of each document; -1 for those that do not wait.
        waiting, begin: int64[m], int64[n+1]: queue q has the documents `waiting[begin[q]:begin[q+1]]`.
    """
    num_batches, num_queues = len(batches) - 1, len(begin) - 1
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    todo = np.empty(len(lengths), dtype=np.int64)  # What is left over, then the new ones.
    tokens = np.empty(num_micro_batches, dtype=np.int64)
    work = np.empty(num_micro_batches, dtype=np.int64)
    num_left = num_carried = done = step = 0
    while done < len(lengths):
        num_todo = num_left
        if step < num_batches:
            for i in range(batches[step], batches[step + 1]):
                if queue[i] < 0:
                    todo[num_todo] = i
                    num_todo += 1
                else:
                    tail[queue[i]] += 1
        for q in range(num_queues):
            held = tail[q] - head[q]
            if held >= num_micro_batches or step >= num_batches:
                for _ in range(min(held, num_micro_batches)):
                    todo[num_todo] = waiting[head[q]]
                    num_todo += 1
                    head[q] += 1
        _sort_falling(lengths, todo[num_left:num_todo])
        tokens[:] = 0
        work[:] = 0
        num_old, num_left = num_left, 0
        for k in range(num_todo):
            i = todo[k]
            length = np.int64(lengths[i])
            least = shortest = 0
            for j in range(1, num_micro_batches):
                if work[j] < work[least]:
                    least = j
                if tokens[j] < tokens[shortest]:
                    shortest = j
            if tokens[least] + length > capacity:
                least = shortest
            if tokens[least] + length > capacity:
                num_carried += k >= num_old
                todo[num_left] = i
                num_left += 1
            else:
                tokens[least] += length
                work[least] += length * (length + linear)
                row_of[i] = step * num_micro_batches + least
                done += 1
        step += 1
    return num_carried


@njit(cache=True)
def _sort_falling(lengths: NDArray[np.int32], documents: NDArray[np.int64]) -> None:
    """Sort documents (int64[k]) by falling length, in place; those of equal length keep their order."""
    keys = np.empty(len(documents), dtype=np.int64)
    for k in range(len(documents)):
        keys[k] = k - (np.int64(lengths[documents[k]]) << 32)
    keys.sort()
    before = documents.copy()
    for k in range(len(documents)):
        documents[k] = before[keys[k] & 0xFFFFFFFF]
