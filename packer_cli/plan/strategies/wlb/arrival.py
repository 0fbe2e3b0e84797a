"""The arrival stream: documents in a seeded order, in global batches of N micro-batches of W tokens (WLB-LLM, 3.2).

A loader at run time would draw them so. Step k is packed from batch k and what earlier batches left over, and a
document's delay counts from its batch. Only the document on the border of two batches is cut, in two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from packer_cli.plan.core.segments import align_up, cut_in_rows
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array, Pieces
from packer_cli.plan.packing.wrap import join


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
        """The first batches alone."""
        batches = self.batches[: num_batches + 1]
        return replace(self, lengths=self.lengths[: batches[-1]], batches=batches)


def arrive(pieces: Pieces, tokens: int, seed: int, align: int = 1) -> Pieces:
    """The pieces in the order of arrival, cut at every multiple of `tokens`. O(m).

    Args:
        tokens: of a global batch; of a row, where rows are cut as they come.
        align: each piece takes a multiple of it, which divides `tokens`.
    """
    order = shuffled(len(pieces), rng_state(seed, Stream.ARRIVAL))
    return cut_in_rows(pieces.sample[order], pieces.start[order], pieces.length[order], tokens, align)


def before_arrival(pieces: Pieces, window: int) -> Pieces:
    """The pieces that `arrive` was given, sample by sample. O(m log m).

    Args:
        window: where samples were cut that are longer.
    """
    samples, start, length = join(pieces, window)
    order = np.lexsort((start, samples))
    return Pieces(samples=samples[order], start=start[order], length=length[order])


def in_batches(
    pieces: Pieces, num_micro_batches: int, window: int, *, linear: int = 0, seed: int = 0, align: int = 1
) -> Arrivals:
    """Pieces that `arrive` gave, in global batches. O(m)."""
    lengths = align_up(pieces.length, align)
    return Arrivals(
        lengths=lengths,
        batches=batch_offsets(lengths, num_micro_batches * window),
        num_micro_batches=num_micro_batches,
        window=window,
        linear=linear,
        seed=seed,
    )


def batch_offsets(lengths: Int32Array, tokens: int) -> Int64Array:
    """Where each global batch begins, int64[b+1]. O(m).

    Args:
        lengths: int32[m], aligned, in the order of arrival; none reaches over a multiple of `tokens`.
    """
    stop = np.cumsum(lengths, dtype=np.int64)
    num_batches = -(-int(stop[-1]) // tokens) if len(stop) else 0
    return np.searchsorted(stop, np.arange(num_batches + 1) * tokens, side="right").astype(np.int64)


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


def imbalances(arrivals: Arrivals, packed: PackedSteps) -> Float64Array:
    """`work_imbalances` of the packed steps (float64[s])."""
    return work_imbalances(arrivals.lengths, packed.row_of, arrivals.num_micro_batches, arrivals.linear)


def work_imbalances(lengths: Int32Array, row_of: Int64Array, num_micro_batches: int, linear: int) -> Float64Array:
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
