"""Twin of `plan.core.sparsity`: masks drawn score by score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def sparsity(packs: Sequence[Sequence[int]], block: int) -> tuple[float, float, float]:
    """(token sparsity, block sparsity, share of packs for FlexAttention) of packs of lengths."""
    scores = kept = blocks = kept_blocks = flex = 0
    for pack in packs:
        sample = np.repeat(np.arange(len(pack)), pack)
        mask = (sample[:, None] == sample[None, :]) & np.tri(len(sample), dtype=bool)
        scores += mask.size
        kept += int(mask.sum())
        for row in range(0, len(sample), block):
            for column in range(0, len(sample), block):
                blocks += 1
                kept_blocks += bool(mask[row : row + block, column : column + block].any())
        flex += 2 * max(pack) <= len(sample)
    return 1 - kept / scores, 1 - kept_blocks / blocks, flex / len(packs)
