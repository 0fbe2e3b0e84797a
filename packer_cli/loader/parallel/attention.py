"""Reference attention over packed rows, alone and shared by ranks: plain torch, differentiable, any device.

These functions define what a kernel must compute, and the tests compare the loader with them; for training, use
flash-attn varlen, FlexAttention or TransformerEngine. `ulysses_attention` and `gathered_attention` take such a kernel
as `attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from packer_cli.format.sharding import Sharding, local_indices, row_order

Attention = Callable[[Tensor, Tensor, Tensor, Any], Tensor]


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Any,
    scale: float | None = None,
    cu_seqlens_k: Any = None,
    kv_index: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Attend causally inside each segment of a row, of its queries to its keys.

    In a row of samples, a segment's keys are those of its queries. In a row of trees (`format.trees`), a segment is a
    run of queries that ends with a leaf, and its keys are those of the leaf's path, which the queries end: the keys
    `tree_kv_index` with the borders `tree_cu_seqlens_q` and `tree_cu_seqlens_k` of a batch of format "tree".

    Args:
        query: [T, heads, dim].
        key, value: [T, kv_heads, dim]; kv_heads divides heads.
        cu_seqlens: integers [segments+1], from 0 to T.
        scale: None for dim ** -0.5.
        cu_seqlens_k: the borders of the keys, where segments have more keys than queries, which are the last ones;
            None: `cu_seqlens`.
        kv_index: int64 [K]: the keys and values of one segment after another; None: they are so already.
        window: keys that a query sees at most, its own among them; in a tree, by depth; None: all.

    Returns:
        [T, heads, dim].

    Price: one scaled_dot_product_attention a segment, or of 1,024 queries where a mask is needed; memory grows with T
    and K.
    """
    if kv_index is not None:
        key, value = (x.index_select(0, kv_index) for x in (key, value))
    borders = (cu_seqlens, cu_seqlens if cu_seqlens_k is None else cu_seqlens_k)
    queries, keys = ([int(stop) - int(start) for start, stop in pairwise(each)] for each in borders)
    # With a batch of one: torch's fused kernels take four dimensions, and it would hold all scores without them.
    parts = (x.transpose(0, 1)[None].split(sizes, 2) for x, sizes in ((query, queries), (key, keys), (value, keys)))
    outputs = []
    for segment in zip(*parts, strict=True):
        for q, k, v, mask in _masked(segment, window):
            is_grouped = q.shape[1] != k.shape[1]
            output = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=is_grouped
            )
            if output.requires_grad:  # A part of the row's gradient has gaps, with which cuDNN's kernel returns NaN.
                output.register_hook(Tensor.contiguous)
            outputs.append(output)
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)


_MASKED_QUERIES = 1024


def _masked(segment: tuple[Tensor, ...], window: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Yield a segment's queries with the keys and values that they see, and a mask; None where a causal one does."""
    q, k, v = segment
    num, before = q.shape[2], k.shape[2] - q.shape[2]
    if not before and (window is None or window >= num):
        yield q, k, v, None
        return
    for begin in range(0, num, _MASKED_QUERIES):
        end = min(begin + _MASKED_QUERIES, num)
        first = 0 if window is None else max(0, before + begin - window + 1)
        mask = torch.ones(end - begin, before + end - first, dtype=torch.bool, device=q.device)
        mask = mask.tril(before + begin - first)
        if window is not None:
            mask = mask.triu(before + begin - first - window + 1)
        yield q[:, :, begin:end], k[:, :, first : before + end], v[:, :, first : before + end], mask


def ulysses_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Any,
    group: dist.ProcessGroup | None,
    attention: Attention = packed_attention,
) -> Tensor:
    """Attend as Ulysses: exchange parts of the row for parts of the heads, attend over the whole row, exchange back.

    Args:
        query: [t, heads, dim], this rank's part under the sharding `contiguous`; the degree divides heads.
        key, value: [t, kv_heads, dim]; kv_heads divides heads. They are copied to the least number that the degree
            divides.
        cu_seqlens: the borders of the whole row.
        group: the SP group; None for degree 1.
        attention: takes query, key, value [T, local heads, dim] and `cu_seqlens`.

    Returns:
        [t, heads, dim].

    Raises:
        ValueError: the degree does not divide the attention heads.

    Price: four all-to-alls forward, four backward. Source: DeepSpeed Ulysses (Jacobs et al. 2023), section 3.
    """
    sp_size = 1 if group is None else dist.get_world_size(group)
    if sp_size == 1:
        return attention(query, key, value, cu_seqlens)
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads % sp_size:
        raise ValueError(
            f"{heads} attention heads cannot be split over {sp_size} ranks: Ulysses needs an SP degree that divides "
            "the heads"
        )
    copies = math.lcm(kv_heads, sp_size) // kv_heads
    if copies > 1:
        key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))
    # From [t, heads, dim] to [T, heads / sp_size, dim], and back.
    parts = (x.unflatten(1, (sp_size, -1)).transpose(0, 1) for x in (query, key, value))
    query, key, value = (_exchange(part, group).flatten(0, 1) for part in parts)
    whole = attention(query, key, value, cu_seqlens)
    return _exchange(whole.unflatten(0, (sp_size, -1)), group).transpose(0, 1).flatten(1, 2)


def _exchange(x: Tensor, group: Any) -> Tensor:
    """Send row i of [sp_size, ...] to rank i; it is its own inverse, and so its own gradient."""

    def run(x: Tensor) -> Tensor:
        output = torch.empty_like(x)
        dist.all_to_all_single(output, x, group=group)
        return output

    return _communicated(x, run, run)


def _communicated(x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
    """Run a collective on a tensor, and its counterpart on the gradient; both are contiguous."""
    found: Tensor = _Collective.apply(x, forward, backward)
    return found


class _Collective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.run = backward
        made: Tensor = forward(x.contiguous())
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.run(grad.contiguous()), None, None


def gathered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Any,
    group: dist.ProcessGroup | None,
    sharding: Sharding = "zigzag",
    attention: Callable[..., Tensor] = packed_attention,
) -> Tensor:
    """Attend as all-gather attention: each rank gathers all keys and values, and attends with its own queries.

    Queries are taken piece by piece. A piece is a run of the rank's queries in one segment, with the segment's keys
    up to its last query.

    Args:
        query: [t, heads, dim], this rank's part under `sharding`.
        key, value: [t, kv_heads, dim]; kv_heads divides heads.
        cu_seqlens: the borders of the whole row.
        group: the CP group; None for degree 1.
        sharding: any; `zigzag` and `document` balance the work.
        attention: takes query [t, heads, dim], key and value [u, kv_heads, dim], and the int32 borders of the pieces'
            queries and, as `cu_seqlens_k`, of their keys, at whose end the queries are.

    Returns:
        [t, heads, dim].

    Price: an all-gather forward; backward an all-reduce, where NCCL would take a reduce-scatter. The keys of a segment
    are copied once for each of its pieces. Source: Llama 3 (arXiv 2407.21783), section 3.3.2.
    """
    sp_size, sp_rank = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
    borders = np.asarray(_host(cu_seqlens))
    pair = torch.stack((key, value))
    if sp_size > 1:
        order = torch.from_numpy(row_order(borders, sp_size, sharding))
        pair = _gathered(pair, group).index_select(1, order.to(pair.device))
    places = local_indices(borders, sp_size, sp_rank, sharding)
    segment = borders.searchsorted(places, side="right")
    begins = np.flatnonzero((np.diff(places, prepend=-2) != 1) | (np.diff(segment, prepend=-1) != 0))
    ends = np.append(begins[1:], len(places))
    seen = [np.arange(borders[segment[end - 1] - 1], places[end - 1] + 1) for end in ends]
    keys, values = pair.index_select(1, torch.from_numpy(np.concatenate(seen)).to(pair.device))
    cu_q, cu_k = (torch.tensor(np.cumsum([0, *x]), dtype=torch.int32) for x in (ends - begins, map(len, seen)))
    return attention(query, keys, values, cu_q.to(query.device), cu_seqlens_k=cu_k.to(query.device))


def _gathered(x: Tensor, group: Any) -> Tensor:
    """Gather the parts [x, t, ...] of all ranks, one after another: [x, T, ...]."""
    length = x.shape[1]

    def of_part(grad: Tensor) -> Tensor:
        dist.all_reduce(grad, group=group)
        return grad.narrow(1, dist.get_rank(group) * length, length)

    return _communicated(x, lambda x: torch.cat(_parts(x, group), dim=1), of_part)


def _parts(x: Tensor, group: Any) -> list[Tensor]:
    """Gather the tensors of all ranks."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts


def take_slice(
    tensor: Tensor, cu_seqlens: Any, sp_size: int, sp_rank: int, sharding: Sharding = "contiguous", dim: int = -1
) -> Tensor:
    """Copy the part of rank `sp_rank` of `tensor`, whose dimension `dim` runs over the row's T tokens.

    Shift labels *before*: within a part, the next token is not always the next one in the row.
    Arguments and errors as in `local_indices`.
    """
    indices = torch.from_numpy(local_indices(_host(cu_seqlens), sp_size, sp_rank, sharding))
    return tensor.index_select(dim, indices.to(tensor.device))


def merge_slices(parts: Sequence[Tensor], cu_seqlens: Any, sharding: Sharding = "contiguous", dim: int = -1) -> Tensor:
    """Merge the parts of ranks 0, 1, ... into the whole row; differentiable: the inverse of `take_slice`."""
    order = torch.from_numpy(row_order(_host(cu_seqlens), len(parts), sharding))
    return torch.cat(list(parts), dim=dim).index_select(dim, order.to(parts[0].device))


def gather_slices(
    part: Tensor, cu_seqlens: Any, group: dist.ProcessGroup | None, sharding: Sharding = "contiguous", dim: int = -1
) -> Tensor:
    """Gather the whole row (outputs, losses) from each rank's `part`, on every rank of `group`, without gradients.

    A row without a group is not shared. Price: one all-gather.
    """
    part = part.detach().contiguous()
    return part if group is None else merge_slices(_parts(part, group), cu_seqlens, sharding, dim)


def sum_slices(part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over the ranks that share a row what each computed of its part: [...] -> [...]; differentiable.

    Each rank computes the same loss of the sum, and `backward` there gives the gradients of its own part alone. So the
    gradients of the loss are their sum over the ranks, as for losses that are sums over tokens (`losses`).

    Price: one all-reduce, forward only.
    """
    if group is None:
        return part

    def run(part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    return _communicated(part, run, lambda grad: grad)


def _host(cu_seqlens: Any) -> Any:
    return cu_seqlens.cpu().numpy() if isinstance(cu_seqlens, Tensor) else cu_seqlens
