"""Overflow and weights: from samples to the pieces that are packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from packer_cli.plan.random import rng_state
from packer_cli.plan.types import Int32Array, Int64Array, Pieces

Overflow = Literal["split", "truncate", "drop", "error"]
OVERFLOW_CHOICES: tuple[Overflow, ...] = ("split", "truncate", "drop", "error")

_STREAM_WEIGHTS = 1


def weighted_samples(sources: Int32Array, weights: Sequence[float], seed: int) -> Int64Array:
    """Sample ids (int64[m], rising) as often as an epoch sees them.

    A source of n samples with weight 2.5 gives each twice, and round(n / 2) of them, drawn with the seed, once more.

    Args:
        sources: int32[n], the source of each sample.
        weights: one a source, > 0.
    """
    if all(weight == 1.0 for weight in weights):
        return np.arange(len(sources), dtype=np.int64)
    times = np.zeros(len(sources), dtype=np.int64)
    for source, weight in enumerate(weights):
        members = np.flatnonzero(sources == source)
        whole = int(weight)
        times[members] = whole
        extra = round((weight - whole) * len(members))
        generator = np.random.Generator(np.random.Philox(int(rng_state(seed, _STREAM_WEIGHTS, source)[0])))
        times[generator.permutation(members)[:extra]] += 1
    return np.repeat(np.arange(len(sources), dtype=np.int64), times)


def make_pieces(lengths: Int32Array, samples: Int64Array, capacity: int, overflow: Overflow) -> Pieces:
    """Whole samples, and what `overflow` makes of those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    `error` must have been refused before. O(n), vectorised.

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int64[k], the sample ids to pack, rising, with repetitions.
    """
    length = lengths[samples]
    if overflow == "drop":
        keep = length <= capacity
        samples, length = samples[keep], length[keep]
    if overflow != "split" or not len(length) or int(length.max()) <= capacity:
        start = np.zeros(len(samples), dtype=np.int64)
        return Pieces(sample=samples, start=start, length=np.minimum(length, capacity).astype(np.int32))
    num_cuts = (length.astype(np.int64) + capacity - 1) // capacity
    sample = np.repeat(samples, num_cuts)
    first = np.cumsum(num_cuts) - num_cuts
    number = np.arange(len(sample), dtype=np.int64) - np.repeat(first, num_cuts)
    start = number * capacity
    rest = np.repeat(length.astype(np.int64), num_cuts) - start
    return Pieces(sample=sample, start=start, length=np.minimum(rest, capacity).astype(np.int32))
