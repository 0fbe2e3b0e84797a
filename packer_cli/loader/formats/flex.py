"""FlexAttention's mask for a packed row of samples or of trees: causal, and never a dense mask.

`torch.nn.attention.flex_attention.create_block_mask` creates the same mask, but outside of a compiled region it first
creates a dense T x T one (16 GiB at 128K tokens). This module computes the block lists from where subtrees end: work
and memory grow with (T / block_size) ** 2, 4 MiB a list at 128K.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

BLOCK_SIZE = 128


class RowMask(BlockMask):
    """A `BlockMask` that knows how it was made, and so can move to a device and to another process.

    A plain one can do neither: its `to` does not move the tensors that its `mask_mod` uses, and it does not pickle.
    """

    make: Callable[..., RowMask]
    """Takes a device and a window."""

    def to(self, device: torch.device | str) -> BlockMask:
        """Return the same mask on `device`."""
        return self.make(device=device)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.make, ()


def document_mask(
    cu_seqlens: torch.Tensor,
    device: torch.device | str = "cpu",
    block_size: int = BLOCK_SIZE,
    window: int | None = None,
) -> RowMask:
    """Make the mask of a packed row: a token sees those of its own segment, up to itself.

    Args:
        cu_seqlens: integers [segments+1], from 0 to T.
        device: the mask's device; FlexAttention needs it on that of the queries.
        block_size: tokens of a block, at least 2; 128 is FlexAttention's default.
        window: tokens that a token sees at most, itself among them.

    Returns:
        A `BlockMask` of shape [1, 1, T, T]. Its `mask_mod` looks up where each token is last seen, int32 [T].
    """
    borders = cu_seqlens.detach().cpu().numpy().astype(np.int32)
    stops = np.repeat(borders[1:], np.diff(borders))
    if window is not None:
        stops = np.minimum(stops, np.arange(len(stops), dtype=np.int32) + window)
    mask = _mask(stops, device, block_size)
    mask.make = partial(document_mask, cu_seqlens, block_size=block_size, window=window)
    return mask


def tree_mask(
    stops: torch.Tensor,
    positions: torch.Tensor,
    device: torch.device | str = "cpu",
    block_size: int = BLOCK_SIZE,
    window: int | None = None,
) -> RowMask:
    """Make the mask of a row of trees (`format.trees`): token k is visible to token q if `k <= q < stops[k]`.

    Args:
        stops: integers [T], where the subtree of each token's segment ends.
        positions: integers [T], the depth of each token, by which a window counts.
        device, block_size, window: as in `document_mask`.

    Returns:
        As `document_mask`. With a window, `mask_mod` looks up the positions, too, and some blocks are listed as partly
        seen that are not seen at all.
    """
    depths = None if window is None else positions.detach().cpu().numpy().astype(np.int32)
    mask = _mask(stops.detach().cpu().numpy().astype(np.int32), device, block_size, depths, window or 0)
    mask.make = partial(tree_mask, stops, positions, block_size=block_size, window=window)
    return mask


def _mask(
    stops: np.ndarray,
    device: torch.device | str,
    block_size: int,
    depths: np.ndarray | None = None,
    window: int = 0,
) -> RowMask:
    length = len(stops)
    begins = np.arange(0, length, block_size, dtype=np.int64)
    ends = begins + block_size
    rows, columns = np.arange(len(begins))[:, None], np.arange(len(begins))[None, :]
    is_seen = np.maximum.reduceat(stops, begins)[None, :] > begins[:, None]
    # As torch has it: no block is full of a block of queries that the row does not fill.
    full = (
        (np.minimum.reduceat(stops, begins)[None, :] >= ends[:, None]) & (columns < rows) & (ends <= length)[:, None]
    )
    if depths is not None:
        least, most = np.minimum.reduceat(depths, begins), np.maximum.reduceat(depths, begins)
        is_seen &= least[:, None] - most[None, :] < window
        full &= most[:, None] - least[None, :] < window
    partial_ = is_seen & (columns <= rows) & ~full

    stop = torch.from_numpy(stops).to(device)
    depth: Any = None if depths is None else torch.from_numpy(depths).to(device)

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (q_idx >= kv_idx) & (q_idx < stop[kv_idx])

    def windowed(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = mask_mod(b, h, q_idx, kv_idx) & (depth[q_idx] - depth[kv_idx] < window)
        return seen

    lists: dict[str, Any] = {}
    for name, dense in (("kv", partial_), ("full_kv", full), ("q", partial_.T), ("full_q", full.T)):
        # All columns, those with a block first; FlexAttention reads only as many as there are blocks.
        order = np.argsort(~dense, axis=1, kind="stable").astype(np.int32)
        lists[f"{name}_indices"] = torch.from_numpy(order).to(device)[None, None]
        lists[f"{name}_num_blocks"] = torch.from_numpy(dense.sum(axis=1, dtype=np.int32)).to(device)[None, None]
    return RowMask(
        **lists,
        seq_lengths=(length, length),
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=mask_mod if depth is None else windowed,
    )
