"""Flat rows for trainers that take a few tensors by names of their own.

`transformers` has the keys of `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`;
`flash-attn` the arguments of `flash_attn_varlen_func`; `deepspeed` (ALST, Ulysses) the batch that
`UlyssesSPDataLoaderAdapter` would pass to the model; `torchtitan` the pair that its trainer unpacks, `input_dict,
labels = batch`; `torchtune` the batch of `padded_collate_packed`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from packer_cli.format.sharding import local_indices
from packer_cli.loader.build_batch import MicroBatch
from packer_cli.loader.formats.base import Batch, as_rows, open_batch, strict_batch, tensors_of
from packer_cli.loader.formats.flex import document_mask

_TOKENS = {"input_ids": "input_ids", "labels": "labels", "position_ids": "position_ids"}


def adapt_transformers(micro: MicroBatch) -> Batch:
    """Return tokens int64 [1, t]; `seq_idx` int32 [1, t]; `cu_seq_lens_q/k` int32 [segments+1]; `max_length_q/k` ints.

    `seq_idx` is the segment of each token. Attention ignores it, but the convolutions and state-space layers of hybrid
    models (Qwen3-Next, Bamba, LFM2, ...) tell samples apart only by it, and would mix them without it.

    There is no `attention_mask`: it would take precedence over the borders, and merge the samples.
    `shift_labels` is only there if ranks share the row; a model uses it instead of shifting `labels`. A set with
    weights has `loss_weights` float32 [1, t], aligned with `labels`, and `shift_loss_weights` with `shift_labels`.
    """
    tokens = as_rows(tensors_of(micro, _TOKENS) | {"seq_idx": segment_numbers(micro)})
    return _with_borders(micro, tokens, "cu_seq_lens", "max_length", as_rows(_of_some_batches(micro)))


def adapt_flash_attn(micro: MicroBatch) -> Batch:
    """Return token tensors int64 [t]; `cu_seqlens_q/k` int32 [segments+1]; `max_seqlen_q/k` ints.

    Pass the last four by keyword. `shift_labels` is only there if ranks share the row. A set with
    weights has `loss_weights` float32 [t], aligned with `labels`, and `shift_loss_weights` with `shift_labels`.
    """
    return _with_borders(micro, tensors_of(micro, _TOKENS), "cu_seqlens", "max_seqlen", _of_some_batches(micro))


def adapt_deepspeed(micro: MicroBatch) -> Batch:
    """Return `input_ids, position_ids, shift_labels` int64 [1, t]; no `labels`, which the model would shift.

    Do not wrap the loader in `UlyssesSPDataLoaderAdapter`: it expects a different row from each rank of the group, but
    here all have the same one, already sliced. The borders are in `position_ids`, which `UlyssesSPAttentionHF`
    gathers; no tensor has another length, since DeepSpeed slices every tensor of a batch. Its core attention must be
    flash attention: with sdpa or flex_attention, it drops the mask and merges the samples.
    """
    names = {"input_ids": "input_ids", "position_ids": "position_ids", "shift_labels": "shift_labels"}
    return strict_batch(micro, as_rows(tensors_of(micro, names)))


def adapt_torchtitan(micro: MicroBatch) -> tuple[Batch, torch.Tensor]:
    """Return ``({"input", "positions"}, labels)``, all int64 [T], the labels already shifted.

    The trainer takes `positions == 0` for the start of a document, and passes every other key to the model's forward,
    so the dictionary holds only these two. Rows are whole, of a multiple of 2 * sp_size tokens: with context
    parallelism, the trainer slices them itself (`prepare_context_parallel_input`).
    """
    batch = strict_batch(micro, tensors_of(micro, {"input": "input_ids", "positions": "position_ids"}))
    return batch, torch.from_numpy(micro.shift_labels)


def adapt_torchtune(micro: MicroBatch) -> Batch:
    """Return `tokens`, `labels` (shifted), `input_pos` int64 [1, T], and `mask`, a `BlockMask` of the whole row.

    A recipe pops `labels` and passes the rest to the model, ``model(**batch)``, so there are no other keys.
    `batch_to_device` moves the mask by its `to`. Rows are whole. torchtune's context parallelism slices only tensors,
    not block masks, so use groups of degree 1.
    """
    names = {"tokens": "input_ids", "labels": "shift_labels", "input_pos": "position_ids"}
    mask = document_mask(torch.from_numpy(micro.cu_seqlens))
    return strict_batch(micro, {**as_rows(tensors_of(micro, names)), "mask": mask})


def _with_borders(
    micro: MicroBatch, tokens: dict[str, torch.Tensor], borders: str, longest: str, others: dict[str, torch.Tensor]
) -> Batch:
    """Make a batch of tensors with the borders of the row, by these names and of queries and of keys, and others."""
    cu_seqlens = torch.from_numpy(micro.cu_seqlens)
    keys: dict[str, Any] = {**tokens, f"{borders}_q": cu_seqlens, f"{borders}_k": cu_seqlens}
    keys |= {f"{longest}_q": micro.max_seqlen, f"{longest}_k": micro.max_seqlen}
    return open_batch(micro, keys | others, cu_seqlens)


def segment_numbers(micro: MicroBatch) -> torch.Tensor:
    """Give this rank's tokens their segments' numbers, int32 [t], from 0; padding at the tail is a segment too.

    Price: one pass that writes 4 bytes a token.
    """
    borders = micro.cu_seqlens
    numbers = np.arange(len(borders) - 1, dtype=np.int32)
    if micro.sliced:
        held = local_indices(borders, micro.layout.row_ranks, micro.row_rank, micro.sharding)
        borders = held.searchsorted(borders)
    return torch.from_numpy(numbers.repeat(borders[1:] - borders[:-1]))


def _of_some_batches(micro: MicroBatch) -> dict[str, torch.Tensor]:
    """Return `shift_labels` if ranks share the row, `loss_weights` in a set with weights, both shifted: [t] each."""
    found = {}
    if micro.layout.row_ranks > 1:
        # A copy: `labels` and `shift_labels` share memory, so writing to one would change the other.
        found["shift_labels"] = micro.shift_labels.copy()
    if micro.loss_weights is not None:
        found["loss_weights"] = micro.loss_weights
        if micro.layout.row_ranks > 1 and micro.shift_loss_weights is not None:
            found["shift_loss_weights"] = micro.shift_loss_weights
    return {name: torch.from_numpy(values) for name, values in found.items()}
