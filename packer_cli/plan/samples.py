"""The samples of a corpus as a plan sees them, and the pieces made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.errors import RunError
from packer_cli.format.metrics import SampleCounts
from packer_cli.plan.pieces import Overflow, make_pieces
from packer_cli.plan.streams import Stream, rng_state
from packer_cli.plan.types import Int32Array, Int64Array, Pieces

MOST_SAMPLES = 2**31 - 1
"""Most samples of an epoch with weights. A wrong weight must raise an error, not exhaust the memory."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The facts about samples that a plan needs."""

    lengths: Int32Array
    """int32[n]"""
    sources: Int32Array | None = None
    """int32[n], the source of each sample; None if unknown."""
    weights: tuple[float, ...] = ()
    """One per source: how often an epoch contains its samples."""

    def chosen(self, seed: int) -> Int64Array:
        """The sample ids (int64[m], increasing) of an epoch, repeated by weight."""
        if self.sources is None:
            return np.arange(len(self.lengths), dtype=np.int64)
        return weighted_samples(self.sources, self.weights, seed)

    def epoch_lengths(self, seed: int) -> Int32Array:
        """int32[m]: the lengths of `chosen`."""
        return self.lengths[self.chosen(seed)]


def pieces_to_plan(samples: Samples, capacity: int, overflow: Overflow, seed: int) -> Pieces:
    """The pieces to pack: samples repeated by weight, with `overflow` applied to those over the capacity.

    Raises:
        RunError: there is nothing to plan, or a sample is too long under `error`.
    """
    chosen = samples.chosen(seed)
    if overflow == "error":
        longest = int(samples.lengths[chosen].max(initial=0))
        if longest > capacity:
            raise RunError(
                f"the longest sample has {longest} tokens, over the largest group's {capacity}; "
                "choose --overflow split, truncate or drop"
            )
    pieces = make_pieces(samples.lengths, chosen, capacity, overflow)
    if not len(pieces):
        raise RunError("there is nothing to plan: no length is left")
    return pieces


def sample_counts(
    lengths: Int32Array, chosen: Int64Array, pieces: Pieces, capacity: int, overflow: str
) -> SampleCounts:
    """What became of the samples.

    Args:
        lengths: int32[n], of all samples.
        chosen: int64[m], the sample ids of an epoch, repeated by weight, increasing.
        pieces: the packed pieces, including those that a packing cut.
        capacity: capacity of the longest group; longer samples follow `overflow`.
    """
    different = chosen[np.diff(chosen, prepend=-1) > 0]
    num_long = int(np.count_nonzero(lengths[different] > capacity))
    return SampleCounts(
        samples=len(lengths),
        left_out_by_weight=len(lengths) - len(different),
        repeated_by_weight=len(chosen) - len(different),
        split=len(np.unique(pieces.sample[pieces.start > 0])),
        truncated=num_long if overflow == "truncate" else 0,
        dropped=num_long if overflow == "drop" else 0,
        pieces=len(pieces),
        tokens=int(pieces.length.sum(dtype=np.int64)),
    )


def weighted_samples(sources: Int32Array, weights: Sequence[float], seed: int) -> Int64Array:
    """The sample ids (int64[m], increasing) of an epoch, repeated by weight.

    A source of n samples with weight 2.5 gives each twice, and round(n / 2) of them, drawn with the seed, once more.

    Args:
        sources: int32[n], the source of each sample.
        weights: one per source, > 0.

    Raises:
        RunError: there would be more than `MOST_SAMPLES`.
    """
    if all(weight == 1.0 for weight in weights):
        return np.arange(len(sources), dtype=np.int64)
    wanted = sum(weight * np.count_nonzero(sources == source) for source, weight in enumerate(weights))
    if wanted > MOST_SAMPLES:
        raise RunError(
            f"the weights make about {wanted:.3g} samples an epoch out of {len(sources)}; it may have {MOST_SAMPLES} "
            "at most: give smaller weights (PATH@WEIGHT), or more epochs"
        )
    times = np.zeros(len(sources), dtype=np.int64)
    for source, weight in enumerate(weights):
        members = np.flatnonzero(sources == source)
        whole = int(weight)
        times[members] = whole
        extra = round((weight - whole) * len(members))
        generator = np.random.Generator(np.random.Philox(int(rng_state(seed, Stream.WEIGHTS, source)[0])))
        times[generator.permutation(members)[:extra]] += 1
    return np.repeat(np.arange(len(sources), dtype=np.int64), times)
