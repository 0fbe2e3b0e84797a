"""DeepSpeed ALST (Ulysses): what `UlyssesSPDataLoaderAdapter` would hand to the model."""

from __future__ import annotations

from typing import Any

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, strict_batch


def adapt(micro: MicroBatch) -> Batch:
    """`input_ids, position_ids, shift_labels` int64 [1, t], and no `labels`, which a model would shift by itself.

    Do not wrap the loader in `UlyssesSPDataLoaderAdapter`: it takes another row from each rank of the group, and here
    they all have the same one, already sliced. The borders are in `position_ids`, which `UlyssesSPAttentionHF`
    gathers; there is no tensor of another length, since DeepSpeed slices every tensor of a batch. Its core attention
    must be flash attention: with sdpa or flex_attention it drops the mask and the samples merge.
    """
    batch: dict[str, Any] = {
        "input_ids": torch.from_numpy(micro.input_ids[None]),
        "position_ids": torch.from_numpy(micro.position_ids[None]),
        "shift_labels": torch.from_numpy(micro.shift_labels[None]),
    }
    return strict_batch(micro, batch)


FORMAT = Format(adapt=adapt)
