"""Megatron-core: the batch of `pretrain_gpt.get_batch`, and that of `get_batch_on_this_rank_for_sequence_packing`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from packer_cli.loader.build_batch import MicroBatch
from packer_cli.loader.formats.base import Batch, as_rows, open_batch, tensors_of


def adapt_row(micro: MicroBatch) -> Batch:
    """Return `tokens`, `labels` (shifted), `position_ids` int64 [1, T], `loss_mask` float32 [1, T], and the borders.

    In a set with weights, the mask has the weights.

    With a CP (or SP) degree above 1, each sample is padded to a multiple of twice the degree, as TransformerEngine
    requires: other lengths give wrong attention without an error. A row then grows by less than that for each sample,
    unless the set was planned with ``--align 2*cp``, which counts them. With another `--align`, each sample is
    padded to a multiple of both. Where samples are padded, `cu_seqlens` counts real tokens and `cu_seqlens_padded`
    tokens with padding, both int32 [1, segments+1]; else there is only `cu_seqlens`, whose last segment is the padding
    at the tail. `max_seqlen` is int32 [1], with padding.

    `packed_seq_params` are keyword arguments for `PackedSeqParams`, with flat borders. Both pairs of borders are the
    padded ones, as in `pretrain_gpt.forward_step`: padding follows the tokens of its sample, so with a causal mask
    none of them sees it. `PackedDataset(sp_slice=True)` slices like `thd_get_partitioned_indices`; otherwise
    `get_batch_on_this_cp_rank` slices the whole row. `total_tokens`, T, is one more argument for releases that have
    it: the Mamba layers of hybrids need it.

    `local_cp_size`, the number of ranks that share the row, is in `packed_seq_params` of slices, and of all rows of a
    set with several degrees; the trainer adds `cp_group`. There, rows of degree 1 need it too: without it,
    `TEDotProductAttention` keeps the group of the row before. Such a set also has it as a key, int32 [1], for
    `--hybrid-context-parallel`. Other sets have not: multi-latent attention refuses it.
    """
    padded = torch.from_numpy(micro.cu_seqlens)
    params: dict[str, Any] = {
        "qkv_format": "thd",
        "cu_seqlens_q": padded,
        "cu_seqlens_kv": padded,
        "max_seqlen_q": micro.max_seqlen,
        "max_seqlen_kv": micro.max_seqlen,
    }
    batch: dict[str, Any] = {
        **as_rows(_tokens(micro)),
        "cu_seqlens": padded[None],
        "max_seqlen": torch.tensor([micro.max_seqlen], dtype=torch.int32),
        "packed_seq_params": params,
        "total_tokens": int(micro.cu_seqlens[-1]),
    }
    if micro.builder.alignment(micro.row) > 1:
        params |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
        batch |= {"cu_seqlens": _real_borders(micro)[None], "cu_seqlens_padded": padded[None]}
    if micro.sliced or micro.builder.has_varying_degrees:
        params["local_cp_size"] = micro.layout.row_ranks
    if micro.builder.has_varying_degrees:
        batch["local_cp_size"] = _local_cp_size(micro)
    return open_batch(micro, batch, padded)


def adapt_thd(micro: MicroBatch) -> Batch:
    """Return the tensors of `adapt_row`, but flat, for `get_batch_on_this_rank_for_sequence_packing`.

    That function adds the batch dimension.

    `tokens`, `labels` (shifted), `position_ids` int64 [T], `loss_mask` float32 [T]; `cu_seqlens`, of real tokens, and
    `cu_seqlens_padded` int32 [segments+1]; `max_seqlen` and `local_cp_size` int32 [1]. That function builds its
    padding mask from the two borders and slices by the padded ones; with `dynamic_cp=True`, it does so for the group
    of `local_cp_size` ranks. It sends the batch to the other ranks, so move it to the GPU first.
    """
    padded = torch.from_numpy(micro.cu_seqlens)
    batch = {
        **_tokens(micro),
        "cu_seqlens": _real_borders(micro),
        "cu_seqlens_padded": padded,
        "max_seqlen": torch.tensor([micro.max_seqlen], dtype=torch.int32),
        "local_cp_size": _local_cp_size(micro),
    }
    return open_batch(micro, batch, padded)


def _tokens(micro: MicroBatch) -> dict[str, torch.Tensor]:
    """Return the tensors [t]; the mask is 1 where there is a label, or its weight, by which losses are multiplied."""
    weights = micro.shift_loss_weights
    mask = (micro.shift_labels >= 0).astype(np.float32) if weights is None else weights
    tokens = tensors_of(micro, {"tokens": "input_ids", "labels": "shift_labels"})
    return tokens | {"loss_mask": torch.from_numpy(mask)} | tensors_of(micro, {"position_ids": "position_ids"})


def _local_cp_size(micro: MicroBatch) -> torch.Tensor:
    """Return int32 [1]: the number of ranks that share the row, as tensor-parallel ranks receive it."""
    return torch.tensor([micro.layout.row_ranks], dtype=torch.int32)


def _real_borders(micro: MicroBatch) -> torch.Tensor:
    """Return int32 [segments+1]: like `cu_seqlens`, but only of real tokens; a segment of padding has none."""
    found = micro.cu_seqlens.copy()
    borders = micro.pack.cu_seqlens[1:] if micro.builder.mask == "document" else micro.pack.cu_seqlens[-1:]
    found[1 : 1 + len(borders)], found[1 + len(borders) :] = borders, micro.pack.cu_seqlens[-1]
    return torch.from_numpy(found)
