"""flash-attn: flat tensors and the arguments of `flash_attn_varlen_func`."""

from __future__ import annotations

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, of_some_batches, open_batch


def adapt(micro: MicroBatch) -> Batch:
    """Return token tensors int64 [t]; `cu_seqlens_q/k` int32 [segments+1]; `max_seqlen_q/k` ints.

    Pass the last four by keyword. `shift_labels` is only there if ranks share the row. A set with
    weights has `loss_weights` float32 [t], aligned with `labels`, and `shift_loss_weights` with `shift_labels`.
    """
    cu_seqlens = torch.from_numpy(micro.cu_seqlens)
    batch = {
        "input_ids": torch.from_numpy(micro.input_ids),
        "labels": torch.from_numpy(micro.labels),
        "position_ids": torch.from_numpy(micro.position_ids),
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_k": cu_seqlens,
        "max_seqlen_q": micro.max_seqlen,
        "max_seqlen_k": micro.max_seqlen,
    }
    return open_batch(micro, {**batch, **of_some_batches(micro)}, cu_seqlens)


FORMAT = Format(adapt=adapt, takes_weights=True)
