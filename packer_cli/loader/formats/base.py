"""What all adapters share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from packer_cli.loader.batch import MicroBatch

Adapter = Callable[[MicroBatch], dict[str, Any]]


def metadata(micro: MicroBatch) -> dict[str, Any]:
    """The keys every format has beside its own: Python ints, and `sample_ids` int64 [n]."""
    row = micro.row
    return {
        "group": row.group,
        "sp_size": row.sp_size,
        "sp_rank": row.sp_rank,
        "dp_rank": row.dp_rank,
        "dp_size": row.dp_size,
        "checkpoint_layers": row.checkpoint_layers,
        "epoch": micro.epoch,
        "step": row.step,
        "iteration": row.iteration,
        "num_samples": len(micro.sample_ids),
        "num_loss_tokens": micro.num_loss_tokens,
        "global_num_samples": row.global_num_samples,
        "global_num_loss_tokens": row.global_num_loss_tokens,
        "sample_ids": torch.from_numpy(micro.sample_ids),
        "pack_id": micro.pack_id,
    }
