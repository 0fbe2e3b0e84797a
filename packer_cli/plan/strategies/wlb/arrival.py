"""The arrival stream: documents in a seeded order, in global batches of N micro-batches of W tokens (WLB-LLM, 3.2).

A loader at run time would draw them so. Step k is packed from batch k and what earlier batches left over, and a
document's delay counts from its batch. Only the document on the border of two batches is cut, in two.

WLB-LLM packs the stream so that long documents wait for others of their length (algorithm 1). A document with
`threshold_i <= length < threshold_(i+1)` waits in FIFO queue i until N of them can go to the N micro-batches of a
step. All others are packed in the step in which they arrive: what the step before left over first, then by falling
length, each to the micro-batch of least work, or to the shortest if that one has no room.

Where we differ from the print: a document as long as the capacity is placed (`<=`, not `<`), and when the data ends,
queues release what they hold. Price: O(m N) and a sort of each step's documents.

Thresholds can be tuned on a sample of the data (section 4.2). The paper does not print its search. Ours is a grid:
lengths from which documents hold a given share of the tokens, all sets of one to three of them. Queues narrower in
length even out better and fill more slowly, so documents wait longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.segments import align_up, cut_in_rows
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array, Pieces
from packer_cli.plan.packing.wrap_decompose import join


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """m documents in the order of arrival, in b global batches."""

    lengths: Int32Array
    """int32[m], aligned; each 1 .. `window`."""
    batches: Int64Array
    """int64[b+1]: batch k holds `lengths[batches[k]:batches[k+1]]`; none is empty."""
    num_micro_batches: int
    """N: micro-batches of a step."""
    window: int
    """W, the context window in tokens. A batch has N * W tokens, the last one maybe fewer."""
    linear: int = 0
    """Tokens; the work of a document is s (s + linear), see `plan.core.cost`."""
    seed: int = 0

    @property
    def num_batches(self) -> int:
        """b"""
        return len(self.batches) - 1

    @property
    def batch_of(self) -> Int64Array:
        """int64[m]: the batch of each document. O(m)."""
        return np.repeat(np.arange(self.num_batches), np.diff(self.batches))

    def first(self, num_batches: int) -> Arrivals:
        """Keep the first batches alone."""
        batches = self.batches[: num_batches + 1]
        return replace(self, lengths=self.lengths[: batches[-1]], batches=batches)


def arrive(pieces: Pieces, tokens: int, seed: int, align: int = 1) -> Pieces:
    """Put the pieces in the order of arrival, cut at every multiple of `tokens`. O(m).

    Args:
        tokens: of a global batch; of a row, where rows are cut as they come.
        align: each piece takes a multiple of it, which divides `tokens`.
    """
    order = shuffled(len(pieces), rng_state(seed, Stream.ARRIVAL))
    return cut_in_rows(pieces.sample[order], pieces.start[order], pieces.length[order], tokens, align)


def before_arrival(pieces: Pieces, window: int) -> Pieces:
    """Return the pieces that `arrive` was given, sample by sample. O(m log m).

    Args:
        window: where samples were cut that are longer.
    """
    samples, start, length = join(pieces, window)
    order = np.lexsort((start, samples))
    return Pieces(samples=samples[order], start=start[order], length=length[order])


def in_batches(
    pieces: Pieces, num_micro_batches: int, window: int, *, linear: int = 0, seed: int = 0, align: int = 1
) -> Arrivals:
    """Divide pieces that `arrive` gave into global batches. O(m)."""
    lengths, tokens = align_up(pieces.length, align), num_micro_batches * window
    stop = np.cumsum(lengths, dtype=np.int64)
    num_batches = -(-int(stop[-1]) // tokens) if len(stop) else 0
    return Arrivals(
        lengths=lengths,
        batches=np.searchsorted(stop, np.arange(num_batches + 1) * tokens, side="right").astype(np.int64),
        num_micro_batches=num_micro_batches,
        window=window,
        linear=linear,
        seed=seed,
    )


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
    """Renumber the steps where some are empty: a trainer would fetch the next batch at once. O(m)."""
    step = packed.row_of // num_micro_batches
    is_used = np.bincount(step, minlength=int(packed.arrival.max(initial=-1)) + 1) > 0
    before: Int64Array = np.cumsum(is_used) - is_used  # An empty step becomes the one after it.
    row_of = before[step] * num_micro_batches + packed.row_of % num_micro_batches
    return packed._replace(row_of=row_of, arrival=before[packed.arrival])


def imbalances(arrivals: Arrivals, lengths: Int32Array, row_of: Int64Array) -> Float64Array:
    """Measure WLB-LLM's imbalance of each step (float64[s]): its micro-batches' greatest work over their mean. O(m).

    Args:
        lengths: int32[m], of some documents.
        row_of: int64[m], of these, as in `PackedSteps`.
    """
    length, in_step = lengths.astype(np.float64), arrivals.num_micro_batches
    num_rows = (int(row_of.max(initial=-1)) // in_step + 1) * in_step
    costs = length * (length + arrivals.linear)
    work = np.bincount(row_of, weights=costs, minlength=num_rows).reshape(-1, in_step)
    return np.asarray(work.max(axis=1) / work.mean(axis=1))


def mean_delay(arrivals: Arrivals, packed: PackedSteps) -> float:
    """Average the steps between a token's arrival and its training, earlier or later. O(m)."""
    steps = np.abs(packed.row_of // arrivals.num_micro_batches - packed.arrival)
    return int(steps @ arrivals.lengths.astype(np.int64)) / int(arrivals.lengths.sum(dtype=np.int64))


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
    lengths: Int32Array,
    batches: Int64Array,
    num_micro_batches: int,
    capacity: int,
    linear: int,
    queue: Int64Array,
    waiting: Int64Array,
    begin: Int64Array,
    row_of: Int64Array,
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
        added = todo[num_left:num_todo]
        added[:] = added[np.argsort(-lengths[added], kind="mergesort")]
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


MOST_QUEUES = 3
_SHARES = (0.5, 0.4, 0.33, 0.27, 0.22, 0.18, 0.14, 0.1, 0.07, 0.04, 0.02)
"""Shares of the tokens, in documents at least as long as a threshold to try."""
_SAMPLE = 30_000
"""Documents of the sample, if that makes `_SAMPLE_BATCHES`."""
_SAMPLE_BATCHES = 64


def tune_thresholds(arrivals: Arrivals, capacity: int, most_delay: float, num_queues: int | None = None) -> Int64Array:
    """Find the thresholds (int64[n], rising) of least mean imbalance whose mean delay is bounded.

    Price: about 230 plans of the first 30,000 documents, or 64 batches if that is more: half a second where a step has
    a few micro-batches, in proportion to their number above that. A sample of few batches tells little about the
    longest documents, which are rare.

    Args:
        capacity: most tokens of a micro-batch.
        most_delay: steps, on average over tokens. If no thresholds stay below it, those of least delay are taken, or
            none where the number of queues is free.
        num_queues: n, at most `MOST_QUEUES`; None for the best of 0 to `MOST_QUEUES`.
    """
    num_batches = max(_SAMPLE_BATCHES, int(np.searchsorted(arrivals.batches, _SAMPLE)))
    sample = arrivals.first(min(num_batches, arrivals.num_batches))
    best, least = np.empty(0, dtype=np.int64), (np.inf, np.inf)
    if not sample.num_batches:
        return best
    for thresholds in _candidates(sample, num_queues):
        packed = pack_with_queues(sample, capacity, thresholds)
        delay = mean_delay(sample, packed)
        of_steps = imbalances(sample, sample.lengths, packed.row_of)
        if sample.num_batches < arrivals.num_batches:  # Steps after a sample's last batch only clear its queues.
            of_steps = of_steps[: int(packed.arrival[-1]) + 1]
        found = (max(0.0, delay - most_delay), float(of_steps.mean()))
        if found < least:
            best, least = thresholds, found
    return best


def _candidates(sample: Arrivals, num_queues: int | None) -> Iterator[Int64Array]:
    falling = np.sort(sample.lengths)[::-1]
    share = np.cumsum(falling, dtype=np.int64) / int(falling.sum(dtype=np.int64))
    lengths = np.unique(falling[np.searchsorted(share, _SHARES)])
    numbers = range(MOST_QUEUES + 1) if num_queues is None else [min(num_queues, len(lengths))]
    for number in numbers:
        for chosen in combinations(lengths.tolist(), number):
            yield np.array(chosen, dtype=np.int64)
