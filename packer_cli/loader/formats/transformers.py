"""transformers: the keys of `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`."""

from __future__ import annotations

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, of_some_batches, open_batch, segment_numbers
from packer_cli.loader.trees import PairBuilder


def adapt(micro: MicroBatch) -> Batch:
    """Return tokens int64 [1, t]; `seq_idx` int32 [1, t]; `cu_seq_lens_q/k` int32 [segments+1]; `max_length_q/k` ints.

    `seq_idx` is the segment of each token. Attention ignores it, but the convolutions and state-space layers of hybrid
    models (Qwen3-Next, Bamba, LFM2, ...) tell samples apart only by it, and would mix them without it.

    There is no `attention_mask`: it would take precedence over the borders, and merge the samples.
    `shift_labels` is only there if ranks share the row; a model uses it instead of shifting `labels`. A set with
    weights has `loss_weights` float32 [1, t], aligned with `labels`, and `shift_loss_weights` with `shift_labels`.
    """
    cu_seqlens = torch.from_numpy(micro.cu_seqlens)
    batch = {
        "input_ids": torch.from_numpy(micro.input_ids[None]),
        "labels": torch.from_numpy(micro.labels[None]),
        "position_ids": torch.from_numpy(micro.position_ids[None]),
        "seq_idx": segment_numbers(micro)[None],
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": micro.max_seqlen,
        "max_length_k": micro.max_seqlen,
    }
    batch |= {name: values[None] for name, values in of_some_batches(micro).items()}
    return open_batch(micro, batch, cu_seqlens)


FORMAT = Format(adapt=adapt, takes_weights=True)
PAIR_FORMAT = Format(adapt=adapt, takes_weights=True, builder=PairBuilder)
"""Flat preference pairs, as ms-swift orders them: `cu_seq_lens_q/k` int32 [2B+1], and [2B+2] with padding. Sample b is
the chosen one of pair b, and sample B + b the rejected one. They share nothing, so a row may be longer than the
capacity, by the prefixes that are there twice."""
