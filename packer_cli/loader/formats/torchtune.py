"""torchtune: the batch of `padded_collate_packed`, with a FlexAttention document mask."""

from __future__ import annotations

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, strict_batch
from packer_cli.loader.formats.flex import document_mask


def adapt(micro: MicroBatch) -> Batch:
    """Return `tokens`, `labels` (shifted), `input_pos` int64 [1, T], and `mask`, a `BlockMask` of the whole row.

    A recipe pops `labels` and passes the rest to the model, ``model(**batch)``, so there are no other keys.
    `batch_to_device` moves the mask by its `to`. Rows are whole. torchtune's context parallelism slices only tensors,
    not block masks, so use groups of degree 1.
    """
    batch = {
        "tokens": torch.from_numpy(micro.input_ids[None]),
        "labels": torch.from_numpy(micro.shift_labels[None]),
        "input_pos": torch.from_numpy(micro.position_ids[None]),
        "mask": document_mask(torch.from_numpy(micro.cu_seqlens)),
    }
    return strict_batch(micro, batch)


FORMAT = Format(adapt=adapt, sp_slice=False, sp_sharding="zigzag")
