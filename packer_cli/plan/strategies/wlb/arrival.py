"""The arrival stream: documents in a seeded order, in global batches of N micro-batches of W tokens (WLB-LLM, 3.2).

A loader at run time would draw them so. Step k is packed from batch k and what earlier batches left over, and a
document's delay counts from its batch. Only the document on the border of two batches is cut, in two.

WLB-LLM packs the stream so that long documents wait for others of their length (algorithm 1). A document with
`threshold_i <= length < threshold_(i+1)` waits in FIFO queue i until N of them can go to the N micro-batches of a
step. All others are packed in the step in which they arrive: what the step before left over first, then by falling
length, each to the micro-batch of least work, or to the shortest if that one has no room.

Where we differ from the print: a document as long as the capacity is placed (`<=`, not `<`), and when the data ends,
queues release what they hold. Price: O(m log N), O(N) for what finds no room at once, and a sort of each step's
documents.

Thresholds can be tuned on a sample of the data (section 4.2). The paper does not print its search. Ours is a grid:
lengths from which documents hold a given share of the tokens, all sets of one to three of them. Queues narrower in
length even out better and fill more slowly, so documents wait longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
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

    @cached_property
    def batch_of(self) -> Int64Array:
        """int64[m]: the batch of each document. O(m)."""
        return np.repeat(np.arange(self.num_batches), np.diff(self.batches))

    @cached_property
    def order(self) -> Int64Array:
        """int64[m]: the documents by falling length. O(m log m)."""
        return np.argsort(-self.lengths, kind="stable")

    @cached_property
    def place(self) -> Int64Array:
        """int64[m]: the place of each document in `order`. O(m)."""
        place = np.empty(len(self.lengths), dtype=np.int64)
        place[self.order] = np.arange(len(place))
        return place

    @cached_property
    def places(self) -> Int64Array:
        """int64[m]: the places of each batch, one batch after another, rising in each. O(m log m)."""
        return self.place[np.lexsort((self.place, self.batch_of))]

    @cached_property
    def sample(self) -> Arrivals:
        """The first batches alone, by which thresholds are tuned."""
        number = min(self.num_batches, max(_SAMPLE_BATCHES, int(np.searchsorted(self.batches, _SAMPLE))))
        batches = self.batches[: number + 1]
        return replace(self, lengths=self.lengths[: batches[-1]], batches=batches)

    @cached_property
    def tried(self) -> dict[tuple[int, ...], tuple[int, float, float]]:
        """Thresholds with which no micro-batch got full: the capacity, delay and imbalance, which stay with more."""
        return {}


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
    is_full: bool = True
    """Whether a document may have been packed elsewhere with more capacity."""


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
    rising = arrivals.lengths[arrivals.order[::-1]]
    begins = np.append(len(rising) - np.searchsorted(rising, thresholds), 0)
    row_of = np.empty(len(rising), dtype=np.int64)
    num_carried, is_full = _pack(
        arrivals.lengths,
        arrivals.batches,
        arrivals.num_micro_batches,
        capacity,
        arrivals.linear,
        arrivals.order,
        arrivals.place,
        arrivals.places,
        begins,
        row_of,
    )
    packed = PackedSteps(row_of, arrivals.batch_of, int(num_carried), tuple(thresholds.tolist()), is_full)
    return without_empty_steps(packed, arrivals.num_micro_batches)


@njit(cache=True)
def _pack(
    lengths: Int32Array,
    batches: Int64Array,
    num_micro_batches: int,
    capacity: int,
    linear: int,
    order: Int64Array,
    place: Int64Array,
    places: Int64Array,
    begins: Int64Array,
    row_of: Int64Array,
) -> tuple[int, bool]:
    """Write to `row_of`; return how many documents found no room in a step, counted once each, and `is_full`.

    Args:
        order, place, places: of the arrivals. Documents are told apart by their places, which rise as lengths fall.
        begins: int64[n+1], falling to 0: queue q has the places from `begins[q + 1]` to below `begins[q]`.
    """
    num_batches, num_queues = len(batches) - 1, len(begins) - 1
    waiting, head, tail = np.empty(len(order), dtype=np.int64), begins[1:].copy(), begins[1:].copy()
    left, released = np.empty(len(order), dtype=np.int64), np.empty(num_queues * num_micro_batches, dtype=np.int64)
    tokens = np.empty(num_micro_batches, dtype=np.int64)
    leaves = 1  # Of a tree, each node of which has the micro-batch of least work below it, the first of equal ones.
    while leaves < num_micro_batches:
        leaves *= 2
    work = np.empty(leaves, dtype=np.int64)
    empty = np.empty(2 * leaves, dtype=np.int64)
    empty[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        empty[node] = empty[2 * node]
    least_below = empty.copy()
    num_left = num_carried = done = step = 0
    is_full = False
    while done < len(order):
        new = places[:0]
        if step < num_batches:
            for i in range(batches[step], batches[step + 1]):
                q = 0
                while q < num_queues and place[i] < begins[q + 1]:
                    q += 1
                if place[i] < begins[0]:
                    waiting[tail[q]] = place[i]
                    tail[q] += 1
            new = places[batches[step] : batches[step + 1]]
            new = new[np.searchsorted(new, begins[0]) :]
        num_released = 0
        for q in range(num_queues):
            held = tail[q] - head[q]
            if held >= num_micro_batches or step >= num_batches:
                taken = min(held, num_micro_batches)
                released[num_released : num_released + taken] = waiting[head[q] : head[q] + taken]
                num_released += taken
                head[q] += taken
        released[:num_released].sort()
        tokens[:] = 0
        work[:num_micro_batches] = 0
        work[num_micro_batches:] = np.iinfo(np.int64).max
        least_below[:] = empty
        num_old, num_left = num_left, 0
        from_new = from_released = 0
        for k in range(num_old + len(new) + num_released):
            if k < num_old:
                at = left[k]
            elif from_released == num_released or (from_new < len(new) and new[from_new] < released[from_released]):
                at = new[from_new]
                from_new += 1
            else:
                at = released[from_released]
                from_released += 1
            i = order[at]
            length = np.int64(lengths[i])
            least = least_below[1]
            if tokens[least] + length > capacity:
                least = np.argmin(tokens)
                is_full = True
            if tokens[least] + length > capacity:
                num_carried += k >= num_old
                left[num_left] = at
                num_left += 1
                continue
            tokens[least] += length
            work[least] += length * (length + linear)
            row_of[i] = step * num_micro_batches + least
            done += 1
            node = (leaves + least) // 2
            while node > 0:
                one, other = least_below[2 * node], least_below[2 * node + 1]
                least_below[node] = other if work[other] < work[one] else one
                node //= 2
        step += 1
    return num_carried, is_full


MOST_QUEUES = 3
_SHARES = (0.5, 0.4, 0.33, 0.27, 0.22, 0.18, 0.14, 0.1, 0.07, 0.04, 0.02)
"""Shares of the tokens, in documents at least as long as a threshold to try."""
_SAMPLE = 30_000
"""Documents of the sample, if that makes `_SAMPLE_BATCHES`."""
_SAMPLE_BATCHES = 64


def tune_thresholds(arrivals: Arrivals, capacity: int, most_delay: float, num_queues: int | None = None) -> Int64Array:
    """Find the thresholds (int64[n], rising) of least mean imbalance whose mean delay is bounded.

    Price: about 230 plans of the first 30,000 documents, or 64 batches if that is more: a third of a second, and
    little more for a higher capacity of the same arrivals. A sample of few batches tells little about the longest
    documents, which are rare.

    Args:
        capacity: most tokens of a micro-batch.
        most_delay: steps, on average over tokens. If no thresholds stay below it, those of least delay are taken, or
            none where the number of queues is free.
        num_queues: n, at most `MOST_QUEUES`; None for the best of 0 to `MOST_QUEUES`.
    """
    sample = arrivals.sample
    best, least = np.empty(0, dtype=np.int64), (np.inf, np.inf)
    if not sample.num_batches:
        return best
    for thresholds in _candidates(sample, num_queues):
        key = tuple(thresholds.tolist())
        enough, delay, imbalance = sample.tried.get(key, (capacity + 1, 0.0, 0.0))
        if capacity < enough:
            packed = pack_with_queues(sample, capacity, thresholds)
            delay = mean_delay(sample, packed)
            of_steps = imbalances(sample, sample.lengths, packed.row_of)
            if sample.num_batches < arrivals.num_batches:  # Steps after a sample's last batch only clear its queues.
                of_steps = of_steps[: int(packed.arrival[-1]) + 1]
            imbalance = float(of_steps.mean())
            if not packed.is_full:
                sample.tried[key] = capacity, delay, imbalance
        found = (max(0.0, delay - most_delay), imbalance)
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
