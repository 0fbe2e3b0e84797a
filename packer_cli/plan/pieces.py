"""Turns samples into the pieces to pack, and applies `--overflow` to samples that are too long."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import SampleCounts
from packer_cli.plan.types import Int32Array, Int64Array, Pieces

Overflow = Literal["split", "truncate", "drop", "error"]


def describe_overflow(num_long: int, capacity: int, overflow: str) -> str | None:
    """Say how many samples `drop` or `truncate` removes or cuts; None if no tokens are lost.

    >>> describe_overflow(2, 512, "drop")
    '--overflow drop: 2 samples are longer than 512 tokens and left out'
    """
    what = {"drop": "left out", "truncate": "cut off there"}.get(overflow)
    if not num_long or what is None:
        return None
    number = "1 sample is" if num_long == 1 else f"{num_long:,} samples are"
    return f"--overflow {overflow}: {number} longer than {capacity:,} tokens and {what}"


def overflow_notes(counts: SampleCounts, capacity: int, overflow: str) -> list[str]:
    """Notes for people on what a plan with these `counts` leaves out."""
    note = describe_overflow(counts.dropped + counts.truncated, capacity, overflow)
    return [f"{note}; {counts.tokens:,} tokens are planned"] if note else []


def make_pieces(lengths: Int32Array, samples: Int64Array, capacity: int, overflow: Overflow) -> Pieces:
    """The pieces: whole samples, with `overflow` applied to those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    The caller raises the error of `error`. O(n).

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int64[k], the sample ids to pack, increasing, with repetitions.
    """
    length = lengths[samples]
    if overflow == "drop":
        keep = length <= capacity
        samples, length = samples[keep], length[keep]
    if overflow != "split" or not len(length) or int(length.max()) <= capacity:
        # `length` is a copy already. Zeros take no memory until they are written to.
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
