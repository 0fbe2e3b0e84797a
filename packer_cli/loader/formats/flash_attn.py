"""flash-attn: flat tensors and the arguments of `flash_attn_varlen_func`."""

from __future__ import annotations

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, open_batch


def adapt(micro: MicroBatch) -> Batch:
    """Token tensors int64 [t]; `cu_seqlens_q/k` int32 [segments+1]; `max_seqlen_q/k` ints.

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
    if micro.layout.row_ranks > 1:
        # A copy: `labels` and `shift_labels` share memory, so writing to one would change the other.
        batch["shift_labels"] = torch.from_numpy(micro.shift_labels.copy())
    if micro.loss_weights is not None:
        batch["loss_weights"] = torch.from_numpy(micro.loss_weights)
        if micro.layout.row_ranks > 1 and micro.shift_loss_weights is not None:
            batch["shift_loss_weights"] = torch.from_numpy(micro.shift_loss_weights)
    return open_batch(micro, batch, cu_seqlens)


FORMAT = Format(adapt=adapt, takes_weights=True)
