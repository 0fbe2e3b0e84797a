"""How much of a pack's score matrix its document mask leaves out: what attention kernels can skip.

Sources: FlexAttention's block masks (blocks of 128 tokens), for causal attention within each sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.cost import segment_sums
from packer_cli.plan.core.segments import attention_segments
from packer_cli.plan.core.types import Int64Array, Plan

BLOCK = 128
"""Tokens of a block's side, FlexAttention's default."""


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Of the packs' score matrices together, each of S * S for a pack of S tokens."""

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
    """Blocks with a score that the mask keeps. A sample over n block rows keeps the n (n + 1) / 2 of its triangle."""
    end = np.cumsum(length)
    end -= np.repeat(np.append(0, end)[offsets[:-1]], np.diff(offsets))
    first, last = (end - length) // block, (end - 1) // block
    rows = (last - first + 1).astype(np.float64)
    # Two samples that meet inside a block both keep that block, and no other.
    is_shared = first[1:] == last[:-1]
    is_shared[offsets[1:-1] - 1] = False
    return float((rows * (rows + 1)).sum() / 2 - is_shared.sum())
