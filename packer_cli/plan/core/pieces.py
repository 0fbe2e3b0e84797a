"""The pieces of flat samples, with `--overflow` applied to long ones."""

from __future__ import annotations

from typing import Literal

import numpy as np

from packer_cli.errors import RunError
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.types import MOST_PIECES, Int32Array, Pieces, as_ids

_BLOCK = 1 << 20

Overflow = Literal["split", "truncate", "drop", "error"]


def make_pieces(lengths: Int32Array, samples: Int32Array | None, capacity: int, overflow: Overflow) -> Pieces:
    """Make the pieces: whole samples, with `overflow` applied to those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    The caller raises the error of `error`. O(n), and no memory where every sample is packed once, as it is.

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int32[k], the sample ids to pack, increasing, with repetitions; None for each once.

    Raises:
        RunError: there would be more than `MOST_PIECES`.
    """
    require_number(len(lengths) if samples is None else len(samples))
    samples = None if samples is None else as_ids(samples)
    length = lengths if samples is None else lengths[samples]
    if not len(length) or int(length.max()) <= capacity:
        # Zeros take no memory until they are written to.
        return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)
    if overflow == "split":
        return _split(samples, length, capacity)
    if overflow == "drop":
        keep = length <= capacity
        samples, length = ids_of(keep) if samples is None else samples[keep], length[keep]
    else:
        samples = np.arange(len(length), dtype=np.int32) if samples is None else samples
        length = np.minimum(length, capacity)
    return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)


def require_number(num_pieces: int) -> None:
    """Raise RunError for more pieces than a plan can number."""
    if num_pieces > MOST_PIECES:
        raise RunError(
            f"the plan would have {num_pieces:,} pieces of samples; it may have {MOST_PIECES:,} at most: divide the "
            "inputs among several sets, or give longer --groups or smaller weights (PATH@WEIGHT)"
        )


def _split(samples: Int32Array | None, lengths: Int32Array, capacity: int) -> Pieces:
    """Split samples of these lengths, in their order, block by block."""
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(lengths), _BLOCK)]
    ends = np.cumsum([0, *(int(_times(lengths[block], capacity).sum(dtype=np.int64)) for block in blocks)])
    require_number(int(ends[-1]))
    sample, length = (np.empty(ends[-1], dtype=np.int32) for _ in range(2))
    start = np.zeros(ends[-1], dtype=np.int32)  # Pages of zeros take no memory until they are written to.
    for block, first, stop in zip(blocks, ends, ends[1:], strict=False):
        own = lengths[block]
        times = _times(own, capacity)
        of = np.arange(block.start, block.start + len(own)) if samples is None else samples[block]
        sample[first:stop] = np.repeat(of, times)
        # The k-th piece of a sample starts k capacities into it.
        number = np.arange(stop - first) - np.repeat(np.cumsum(times, dtype=np.int64) - times, times)
        length[first:stop] = np.minimum(np.repeat(own, times) - number * capacity, capacity)
        later = np.flatnonzero(number)
        start[first + later] = number[later] * capacity
    return Pieces(samples=sample, start=start, length=length)


def _times(lengths: Int32Array, capacity: int) -> Int32Array:
    """Count the pieces (int32[n]) of each sample."""
    return 1 + (lengths - 1) // capacity
