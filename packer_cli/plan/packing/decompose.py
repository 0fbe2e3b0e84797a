"""Dataset decomposition: cut samples into pieces of powers of two, and give each row pieces of one length.

Source: Pouransari et al., "Dataset Decomposition: Faster LLM Training with Variable Sequence Length Curriculum",
arXiv 2405.13226. Price: O(n log capacity) for n samples. Use it for pre-training with a curriculum: rows are full,
rows of short pieces cost little attention, and `--curriculum-steps` takes them first. Do not use it for fine-tuning:
it cuts nearly every sample.

The paper drops what is left of a sample below its shortest length. Here nothing is dropped: a rest below 64 tokens
(or below `--align`, to which a shorter piece would be padded) is a piece of its own length, and fills rows with the
last pieces of every length.

There is exactly one group, and its capacity is a power of two. Pieces that an earlier step cut are first joined again.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.best_fit import best_fit_decreasing, runs_by_decreasing_length
from packer_cli.plan.packing.wrap import join

SHORTEST = 64
"""The lowest power of two to cut, in tokens; a rest below it is not cut further."""


def cut(pieces: Pieces, capacity: int, seed: int, align: int = 1) -> Pieces:
    """Cut samples into powers of two, longest first, and a rest below `SHORTEST`, or below `align`.

    Args:
        align: divides the capacity, and so is a power of two.
    """
    samples, start, length = _decompose(*join(pieces), capacity, min(max(SHORTEST, align), capacity))
    return Pieces(samples=samples, start=start, length=length)


@njit(cache=True)
def _decompose(
    samples: NDArray[np.int32],
    starts: NDArray[np.int32],
    totals: NDArray[np.int32],
    longest: int,
    shortest: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Cut these stretches of samples; return (sample int32[m], start int32[m], length int32[m]) of the pieces."""
    num = 0
    for total in totals:
        num += total // longest
        rest = total % longest
        power = longest
        while power > shortest:
            power //= 2
            num += np.int64((rest & power) > 0)
        num += np.int64(rest % shortest > 0)
    of, start, length = np.empty(num, dtype=np.int32), np.empty(num, dtype=np.int32), np.empty(num, dtype=np.int32)
    k = 0
    for i in range(len(totals)):
        begin, left, power = int(starts[i]), int(totals[i]), longest
        while left > 0:
            while power > left and power > shortest:
                power //= 2
            size = min(power, left)
            of[k], start[k], length[k] = samples[i], begin, size
            begin += size
            left -= size
            k += 1
    return of, start, length


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Fill rows with pieces of one length, in seeded order; pack what does not fill such a row by `bfd`."""
    order = shuffled(len(lengths), rng_state(seed))
    order = order[argsort_descending(lengths[order])]
    is_left = np.ones(len(order), dtype=np.bool_)
    sizes = []
    begin = 0
    run_lengths, counts = runs_by_decreasing_length(lengths)
    for length, count in zip(run_lengths.tolist(), counts.tolist(), strict=True):
        if length & (length - 1) == 0 and length >= min(SHORTEST, capacity):
            per_row = capacity // length
            sizes.append(np.full(count // per_row, per_row))
            is_left[begin : begin + count // per_row * per_row] = False
        begin += count
    left = order[is_left]
    full_offsets = np.concatenate([[0], np.cumsum(np.concatenate([[], *sizes]), dtype=np.int64)])
    offsets, members = best_fit_decreasing(lengths[left], capacity)
    order = order[~is_left]
    return np.concatenate([full_offsets[:-1], len(order) + offsets]), np.concatenate([order, left[members]])


ALGORITHM = PackingAlgorithm(
    name="decompose",
    summary="dataset decomposition: cut samples into powers of two, rows of one length; one group only",
    pack=pack,
    cut=cut,
    needs_power_of_two=True,
    bytes_a_sample=85,
)
