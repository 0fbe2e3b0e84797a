"""Overflow and weights: from samples to the pieces that are packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.plan.streams import rng_state
from packer_cli.plan.types import Int32Array, Int64Array, Pieces

Overflow = Literal["split", "truncate", "drop", "error"]

MOST_SAMPLES = 2**31 - 1
"""Of an epoch, where weights repeat them: what they add up to by mistake must not end in a lack of memory."""
_STREAM_WEIGHTS = 1


def weighted_samples(sources: Int32Array, weights: Sequence[float], seed: int) -> Int64Array:
    """Sample ids (int64[m], rising) as often as an epoch sees them.

    A source of n samples with weight 2.5 gives each twice, and round(n / 2) of them, drawn with the seed, once more.

    Args:
        sources: int32[n], the source of each sample.
        weights: one a source, > 0.

    Raises:
        RunError: they would be more than `MOST_SAMPLES`.
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
        generator = np.random.Generator(np.random.Philox(int(rng_state(seed, _STREAM_WEIGHTS, source)[0])))
        times[generator.permutation(members)[:extra]] += 1
    return np.repeat(np.arange(len(sources), dtype=np.int64), times)


def describe_overflow(num_long: int, capacity: int, overflow: str) -> str | None:
    """What `drop` and `truncate` take away, for people; None where that is nothing, or nothing is lost.

    >>> describe_overflow(2, 512, "drop")
    '--overflow drop: 2 samples are longer than 512 tokens and left out'
    """
    what = {"drop": "left out", "truncate": "cut off there"}.get(overflow)
    if not num_long or what is None:
        return None
    number = "1 sample is" if num_long == 1 else f"{num_long:,} samples are"
    return f"--overflow {overflow}: {number} longer than {capacity:,} tokens and {what}"


def make_pieces(lengths: Int32Array, samples: Int64Array, capacity: int, overflow: Overflow) -> Pieces:
    """Whole samples, and what `overflow` makes of those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    `error` must have been refused before. O(n).

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int64[k], the sample ids to pack, rising, with repetitions.
    """
    length = lengths[samples]
    if overflow == "drop":
        keep = length <= capacity
        samples, length = samples[keep], length[keep]
    if overflow != "split" or not len(length) or int(length.max()) <= capacity:
        # `length` is a copy already. Zeros take no memory before they are written to.
        np.minimum(length, capacity, out=length)
        return Pieces(sample=samples, start=np.zeros(len(samples), dtype=np.int64), length=length)
    sample, start, length = _split(samples, length, capacity)
    return Pieces(sample=sample, start=start, length=length)


def _split(
    samples: NDArray[np.int64], lengths: NDArray[np.int32], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Sample, start and length of each piece, in the order of the samples."""
    times = 1 + (lengths - 1) // capacity
    sample = np.repeat(samples, times)
    # The k-th piece of a sample starts k capacities into it.
    number = np.arange(len(sample)) - np.repeat(np.cumsum(times, dtype=np.int64) - times, times)
    start = number * capacity
    length = np.minimum(np.repeat(lengths, times) - start, capacity).astype(np.int32)
    return sample, start, length
