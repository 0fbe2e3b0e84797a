"""Samples in their rows: padded to a multiple where trainers do so, and segments of attention or not.

With context parallelism, TransformerEngine cuts each sample into 2 * cp equal parts, so Megatron and NeMo pad every
sample to a multiple. A plan that counts the padding fills rows up to their capacity, and no further.

How much of a pack's score matrix its document mask leaves out: what attention kernels can skip.
Sources: FlexAttention's block masks (blocks of 128 tokens), for causal attention within each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import expand, owners
from packer_cli.plan.core.cost import segment_sums
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Int32Array, Int64Array, Packs, Pieces, Plan

_BLOCK = 1 << 18


def attention_segments(plan: Plan) -> tuple[Int32Array, Int64Array]:
    """Return the lengths (int32[x]) of segments that attention runs over, and each pack's offsets (int64[p+1]). O(m).

    The segments are the aligned samples or, with a causal mask over whole rows, each pack's tokens at once.
    """
    lengths = aligned_lengths(plan.pieces, plan.packs, plan.groups)[plan.packs.pieces]
    if plan.mask == "document":
        return lengths, plan.packs.offsets
    return segment_sums(lengths, plan.packs.offsets).astype(np.int32), np.arange(len(plan.packs) + 1)


def row_lengths(plan: Plan) -> Int32Array:
    """Return each piece's tokens (int32[m]) in its row: aligned, or padded to the longest of its batch. O(m)."""
    if plan.is_padded:
        return padded_lengths(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
    return aligned_lengths(plan.pieces, plan.packs, plan.groups)


def padded_lengths(offsets: Int64Array, pieces: Int32Array, lengths: Int32Array) -> Int32Array:
    """Return the length (int32[m]) of the longest piece in each piece's pack; the packs hold all m pieces. O(m)."""
    padded = lengths.copy()
    if len(pieces):
        padded[pieces] = np.repeat(np.maximum.reduceat(lengths[pieces], offsets[:-1]), np.diff(offsets))
    return padded


def align_up(lengths: NDArray[Any], align: int) -> NDArray[Any]:
    """Round each length up to a multiple of `align`; return the same array if that is 1. O(n).

    >>> align_up(np.array([1, 16, 17], dtype=np.int32), 16).tolist()
    [16, 16, 32]
    """
    if align == 1:
        return lengths
    aligned = lengths + (align - 1)
    aligned //= align
    aligned *= align
    return aligned


def cut_in_rows(sample: Int32Array, start: Int32Array, length: Int32Array, tokens: int, align: int = 1) -> Pieces:
    """Cut stretches of samples, one after another, at every multiple of `tokens`. O(pieces), block by block.

    Args:
        sample, start, length: int32[n], of each stretch.
        align: each stretch begins at a multiple of it, which divides `tokens`.
    """
    # Room for the pieces: a cut at the end of every row. Untouched memory costs nothing.
    total = int(length.sum(dtype=np.int64)) + len(length) * (align - 1)
    room = len(length) + total // tokens + 1
    cut = np.empty(room, dtype=np.int32), np.zeros(room, dtype=np.int32), np.empty(room, dtype=np.int32)
    before = num_pieces = 0
    for first in range(0, len(length), _BLOCK):
        own = slice(first, first + _BLOCK)
        taken = align_up(length[own].astype(np.int64), align)
        stop = np.cumsum(taken) + before
        begin = stop - taken
        # Each stretch gives a piece for each row that it reaches into.
        num_parts = (stop - 1) // tokens - begin // tokens + 1
        of, row = owners(num_parts), expand(begin // tokens, num_parts)
        part_begin = np.maximum(begin[of], row * tokens)
        part_stop = np.minimum((begin + length[own])[of], (row + 1) * tokens)
        into = slice(num_pieces, num_pieces + len(of))
        cut[0][into] = sample[own][of]
        begins = start[own][of] + part_begin - begin[of]
        later = np.flatnonzero(begins)  # Pages of zeros take no memory until they are written to.
        cut[1][num_pieces + later] = begins[later]
        cut[2][into] = part_stop - part_begin
        before, num_pieces = int(stop[-1]), into.stop
    samples, starts, lengths = (values[:num_pieces] for values in cut)
    return Pieces(samples=samples, start=starts, length=lengths)


def aligned_lengths(pieces: Pieces, packs: Packs, groups: Sequence[Group]) -> Int32Array:
    """Return each piece's tokens (int32[m]) in its row; the pieces' own array where nothing is aligned. O(m)."""
    aligns = {group.align for group in groups}
    if len(aligns) == 1:
        return align_up(pieces.length, aligns.pop())
    of_pack = np.array([group.align for group in groups], dtype=np.int32)[packs.group]
    align = np.empty_like(pieces.length)
    align[packs.pieces] = np.repeat(of_pack, np.diff(packs.offsets))
    return -(-pieces.length // align) * align


BLOCK = 128
"""Tokens of a block's side, FlexAttention's default."""


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Sparsity of the packs' score matrices together, each of S * S for a pack of S tokens."""

    token_sparsity: float
    """Share of the scores that the mask leaves out: 1 - sum (s^2 + s) / (2 sum S^2) for samples of s tokens."""
    block_sparsity: float
    """Share of the blocks without any score that the mask keeps; a block kernel skips these."""
    flex_share: float
    """Share of the packs whose longest sample is at most half the pack: there a block kernel pays, because the mask
    leaves out at least 3/4 - 1 / (2 S)."""
    dense_work: float
    """Scores that attention over a dense mask computes (all of them, as SDPA does) for each one that counts."""


def measure_sparsity(plan: Plan, group: int | None = None, block: int = BLOCK) -> Sparsity:
    """Measure the packs of one group, or of all. Price: O(pieces).

    Without packs, nothing is left out.
    """
    packs = plan.packs
    first, stop = (0, len(packs)) if group is None else np.searchsorted(packs.group, [group, group + 1]).tolist()
    if not first < stop:
        return Sparsity(token_sparsity=0.0, block_sparsity=0.0, flex_share=0.0, dense_work=1.0)
    lengths, offsets = attention_segments(plan)
    offsets = offsets[first : stop + 1]
    length = lengths[offsets[0] : offsets[-1]].astype(np.int64)
    offsets = offsets - offsets[0]
    tokens = segment_sums(length, offsets)
    scores = float((length.astype(np.float64) * (length + 1)).sum()) / 2
    num_blocks = -(-tokens // block)
    longest = np.maximum.reduceat(length, offsets[:-1])
    all_scores = float(np.square(tokens, dtype=np.float64).sum())
    return Sparsity(
        token_sparsity=1 - scores / all_scores,
        block_sparsity=1 - _blocks_kept(length, offsets, block) / float(np.square(num_blocks, dtype=np.float64).sum()),
        flex_share=float((2 * longest <= tokens).mean()),
        dense_work=all_scores / scores,
    )


def _blocks_kept(length: Int64Array, offsets: Int64Array, block: int) -> float:
    """Count blocks with a score that the mask keeps. A sample over n block rows keeps its triangle's n (n + 1) / 2."""
    end = np.cumsum(length)
    end -= np.repeat(np.append(0, end)[offsets[:-1]], np.diff(offsets))
    first, last = (end - length) // block, (end - 1) // block
    rows = (last - first + 1).astype(np.float64)
    # Two samples that meet inside a block both keep that block, and no other.
    is_shared = first[1:] == last[:-1]
    is_shared[offsets[1:-1] - 1] = False
    return float((rows * (rows + 1)).sum() / 2 - is_shared.sum())
