"""FlexAttention's mask for a packed row: block-diagonal and causal, never a dense mask.

`torch.nn.attention.flex_attention.create_block_mask` creates the same mask, but outside of a compiled region it first
creates a dense T x T one (16 GiB at 128K tokens). This module computes the block lists from the borders: work and
memory grow with (T / block_size) ** 2, 4 MiB a list at 128K.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

BLOCK_SIZE = 128


class DocumentMask(BlockMask):
    """A `BlockMask` that knows its borders, and so can move to a device and to another process.

    A plain one can do neither: its `to` does not move the tensors that its `mask_mod` uses, and it does not pickle.
    """

    cu_seqlens: torch.Tensor
    window: int | None

    def to(self, device: torch.device | str) -> BlockMask:
        """The same mask on `device`."""
        return document_mask(self.cu_seqlens, device=device, block_size=self.BLOCK_SIZE[0], window=self.window)

    def __reduce__(self) -> tuple[Any, ...]:
        return document_mask, (self.cu_seqlens, "cpu", self.BLOCK_SIZE[0], self.window)


def document_mask(
    cu_seqlens: torch.Tensor,
    device: torch.device | str = "cpu",
    block_size: int = BLOCK_SIZE,
    window: int | None = None,
) -> DocumentMask:
    """The mask of a packed row: a token sees those of its own segment, up to itself.

    Args:
        cu_seqlens: integers [segments+1], from 0 to T.
        device: the mask's device; FlexAttention needs it on that of the queries.
        block_size: tokens of a block, at least 2; 128 is FlexAttention's default.
        window: tokens that a token sees at most, itself among them.

    Returns:
        A `BlockMask` of shape [1, 1, T, T]. Its `mask_mod` looks up the first token that each one sees, int64 [T].
    """
    borders = cu_seqlens.detach().cpu().numpy().astype(np.int64)
    length = int(borders[-1])
    first_seen = np.repeat(borders[:-1], np.diff(borders))
    if window is not None:
        first_seen = np.maximum(first_seen, np.arange(length) - window + 1)
    blocks = np.arange(-(-length // block_size))
    rows, columns = blocks[:, None], blocks[None, :]
    # The first token of a block sees the farthest back, the last one the least far.
    first = first_seen[blocks * block_size] // block_size
    first_full = -(-first_seen[np.minimum((blocks + 1) * block_size, length) - 1] // block_size)
    # As torch has it: no block is full of a block of queries that the row does not fill.
    full = (columns >= first_full[:, None]) & (columns < rows) & ((rows + 1) * block_size <= length)
    partial = (columns >= first[:, None]) & (columns <= rows) & ~full

    seen_from = torch.from_numpy(first_seen).to(device)

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (q_idx >= kv_idx) & (kv_idx >= seen_from[q_idx])

    lists: dict[str, Any] = {}
    for name, dense in (("kv", partial), ("full_kv", full), ("q", partial.T), ("full_q", full.T)):
        # All columns, those with a block first; FlexAttention reads only as many as there are blocks.
        order = np.argsort(~dense, axis=1, kind="stable").astype(np.int32)
        lists[f"{name}_indices"] = torch.from_numpy(order).to(device)[None, None]
        lists[f"{name}_num_blocks"] = torch.from_numpy(dense.sum(axis=1, dtype=np.int32)).to(device)[None, None]
    mask = DocumentMask(**lists, seq_lengths=(length, length), BLOCK_SIZE=(block_size, block_size), mask_mod=mask_mod)
    mask.cu_seqlens, mask.window = cu_seqlens, window
    return mask
