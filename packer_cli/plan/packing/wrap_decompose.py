"""Packings that cut samples at any token, for pre-training: there is exactly one group, as none needs longer packs.

Pieces that an earlier step cut, such as `--overflow split`, are first joined again.

- `wrap`: concatenate the samples in a shuffled order and cut at the capacity. Source: Brown et al., arXiv 2005.14165
  (GPT-3), and every pre-training pipeline since. Price: O(n), vectorised. Use it for pre-training: it pads only the
  last pack. Do not use it for fine-tuning: it cuts about one sample per pack, whose later part then lacks its
  beginning; `bfd-split` cuts only samples longer than the capacity.
- `decompose`, dataset decomposition: cut samples into pieces of powers of two, and give each row pieces of one length.
  Source: Pouransari et al., "Dataset Decomposition: Faster LLM Training with Variable Sequence Length Curriculum",
  arXiv 2405.13226. Price: O(n log capacity) for n samples. Use it for pre-training with a curriculum: rows are full,
  rows of short pieces cost little attention, and `--curriculum-steps` takes them first. Do not use it for
  fine-tuning: it cuts nearly every sample. The capacity is a power of two. The paper drops what is left of a sample
  below its shortest length. Here nothing is dropped: a rest below 64 tokens (or below `--align`, to which a shorter
  piece would be padded) is a piece of its own length, and fills rows with the last pieces of every length.
"""

from __future__ import annotations

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.segments import cut_in_rows
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.best_fit import best_fit_decreasing
from packer_cli.plan.packing.first_fit import runs_by_decreasing_length
from packer_cli.plan.packing.next_fit import pack_in_order


def _wrap(pieces: Pieces, capacity: int, seed: int, align: int = 1) -> Pieces:
    """Cut the pieces, in a shuffled order, so that next-fit fills every pack but the last.

    Args:
        align: each sample begins at a multiple of it, which divides the capacity.
    """
    sample, start, total = join(pieces)
    order = shuffled(len(total), rng_state(seed))
    return cut_in_rows(sample[order], start[order], total[order], capacity, align)


def join(pieces: Pieces, longest: int | None = None) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Join pieces of a sample that follow one another to stretches: (sample, start, tokens), int32[k] each.

    Args:
        longest: none is joined to what stands before a multiple of it, where `--overflow split` cuts samples.
    """
    if pieces.samples is None:
        return pieces.sample, pieces.start, pieces.length
    end = pieces.start + pieces.length  # Within a sample, so it fits.
    is_first = np.ones(len(pieces), dtype=np.bool_)
    is_first[1:] = (pieces.samples[1:] != pieces.samples[:-1]) | (pieces.start[1:] != end[:-1])
    if longest is not None:
        is_first |= pieces.start % longest == 0
    sample, start = pieces.samples[is_first], pieces.start[is_first]
    # A stretch ends with the last piece before the next stretch.
    is_last = np.append(is_first[1:], len(pieces) > 0)
    return sample, start, end[is_last[: len(end)]] - start


WRAP = PackingAlgorithm(
    name="wrap",
    summary="pre-training: concatenate and cut at the capacity; pads nothing, cuts samples; one group only",
    pack=pack_in_order,
    cut=_wrap,
    bytes_a_sample=80,
)


SHORTEST = 64
"""The lowest power of two to cut, in tokens; a rest below it is not cut further."""


def _cut_powers(pieces: Pieces, capacity: int, seed: int, align: int = 1) -> Pieces:
    """Cut samples into powers of two, longest first, and a rest below `SHORTEST`, or below `align`.

    Args:
        align: divides the capacity, and so is a power of two.
    """
    (samples, starts, totals), shortest = join(pieces), min(max(SHORTEST, align), capacity)
    powers = np.bitwise_count(totals % capacity // shortest)
    num = int((totals // capacity + powers + (totals % shortest > 0)).sum(dtype=np.int64))
    cut = np.empty((3, num), dtype=np.int32)
    _decompose(samples, starts, totals, capacity, shortest, cut)
    samples, start, length = cut
    return Pieces(samples=samples, start=start, length=length)


@njit(cache=True)
def _decompose(
    samples: Int32Array, starts: Int32Array, totals: Int32Array, longest: int, shortest: int, pieces: Int32Array
) -> None:
    """Cut these stretches of samples: write the samples, starts and lengths of the pieces (int32[3, m])."""
    of, start, length = pieces
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


def _pack_alike(
    lengths: Int32Array, capacity: int, seed: int, options: PackingOptions
) -> tuple[Int64Array, Int32Array]:
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


DECOMPOSE = PackingAlgorithm(
    name="decompose",
    summary="dataset decomposition: cut samples into powers of two, rows of one length; one group only",
    pack=_pack_alike,
    cut=_cut_powers,
    needs_power_of_two=True,
    bytes_a_sample=85,
)
