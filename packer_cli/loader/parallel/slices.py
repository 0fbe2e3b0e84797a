"""Splits tensors of a whole row into the ranks' parts, and merges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from packer_cli.format.sharding import Sharding, local_indices, row_order


def take_slice(
    tensor: torch.Tensor,
    cu_seqlens: Any,
    sp_size: int,
    sp_rank: int,
    sharding: Sharding = "contiguous",
    dim: int = -1,
) -> torch.Tensor:
    """A copy of the part of rank `sp_rank` of `tensor`, whose dimension `dim` runs over the row's T tokens.

    Shift labels *before*: within a part, the next token is not always the next one in the row.
    Arguments and errors as in `local_indices`.
    """
    indices = torch.from_numpy(local_indices(_host(cu_seqlens), sp_size, sp_rank, sharding))
    return tensor.index_select(dim, indices.to(tensor.device))


def merge_slices(
    parts: Sequence[torch.Tensor], cu_seqlens: Any, sharding: Sharding = "contiguous", dim: int = -1
) -> torch.Tensor:
    """The inverse of `take_slice`: merge the parts of ranks 0, 1, ... into the whole row; differentiable."""
    order = torch.from_numpy(row_order(_host(cu_seqlens), len(parts), sharding))
    return torch.cat(list(parts), dim=dim).index_select(dim, order.to(parts[0].device))


def gather_slices(
    part: torch.Tensor,
    cu_seqlens: Any,
    group: dist.ProcessGroup | None,
    sharding: Sharding = "contiguous",
    dim: int = -1,
) -> torch.Tensor:
    """Gather the whole row (outputs, losses) from each rank's `part`, on every rank of `group`, without gradients.

    A row without a group is not shared. Price: one all-gather.
    """
    part = part.detach().contiguous()
    if group is None:
        return part
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group=group)
    return merge_slices(parts, cu_seqlens, sharding, dim)


def _host(cu_seqlens: Any) -> Any:
    return cu_seqlens.cpu().numpy() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
