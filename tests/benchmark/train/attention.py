"""Attention of the rows that are trained on: Ulysses, as `hbpack profile` measures it, or all-gather for CP ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from packer_cli.format.sharding import Sharding
from packer_cli.loader.parallel import gathered_attention
from packer_cli.measure.kernels import Kernel, RowAttention, Segments


class TrainedAttention(RowAttention):
    """Attention over the current row, within the SP or CP group that shares it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.sharding: Sharding | None = None
        """How CP ranks divide the current row; None where it has none."""

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[t, heads, dim] -> [t, heads, dim], for this rank's part of the row."""
        if self.sharding is None:
            return super().__call__(query, key, value)
        assert self._segments is not None
        borders = self._segments.cu_queries
        return gathered_attention(query, key, value, borders, self._group, self.sharding, self._pieces)

    def _pieces(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, borders: Any, *, cu_seqlens_k: Any
    ) -> torch.Tensor:
        queries, keys = (tuple(b - a for a, b in pairwise(each.tolist())) for each in (borders, cu_seqlens_k))
        return self._kernel(query, key, value, Segments(queries, keys, query.device))


def exchange(pair: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """What `gathered_attention` exchanges in a layer: keys and values forward, their gradients backward.

    Args:
        pair: this rank's keys and values.
    """
    parts = [torch.empty_like(pair) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, pair, group=group)
    dist.all_reduce(torch.stack(parts), group=group)
