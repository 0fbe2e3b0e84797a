"""Concatenate the samples in a shuffled order and cut at the capacity, as for pre-training.

Source: Brown et al., arXiv 2005.14165 (GPT-3), and every pre-training pipeline since. Price: O(n), vectorised. Use it
for pre-training: it pads only the last pack. Do not use it for fine-tuning: it cuts about one sample per pack, whose
later part then lacks its beginning; `bfd-split` cuts only samples longer than the capacity.

Because samples are cut at any token, there is exactly one group: none needs longer packs. Pieces that an earlier step
cut, such as `--overflow split`, are first joined again.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.segments import cut_in_rows
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Pieces
from packer_cli.plan.packing import next_fit
from packer_cli.plan.packing.base import PackingAlgorithm


def cut(pieces: Pieces, capacity: int, seed: int, align: int = 1) -> Pieces:
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


ALGORITHM = PackingAlgorithm(
    name="wrap",
    summary="pre-training: concatenate and cut at the capacity; pads nothing, cuts samples; one group only",
    pack=next_fit.pack,
    cut=cut,
    bytes_a_sample=80,
)
