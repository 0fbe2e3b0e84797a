"""DeepSpeed ALST (Ulysses): the batch that `UlyssesSPDataLoaderAdapter` would pass to the model."""

from __future__ import annotations

from typing import Any

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, strict_batch


def adapt(micro: MicroBatch) -> Batch:
    """Return `input_ids, position_ids, shift_labels` int64 [1, t]; no `labels`, which the model would shift.

    Do not wrap the loader in `UlyssesSPDataLoaderAdapter`: it expects a different row from each rank of the group, but
    here all have the same one, already sliced. The borders are in `position_ids`, which `UlyssesSPAttentionHF`
    gathers; no tensor has another length, since DeepSpeed slices every tensor of a batch. Its core attention must be
    flash attention: with sdpa or flex_attention, it drops the mask and merges the samples.
    """
    batch: dict[str, Any] = {
        "input_ids": torch.from_numpy(micro.input_ids[None]),
        "position_ids": torch.from_numpy(micro.position_ids[None]),
        "shift_labels": torch.from_numpy(micro.shift_labels[None]),
    }
    return strict_batch(micro, batch)


FORMAT = Format(adapt=adapt, positions_are_borders=True)
