"""What all formats share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from packer_cli.loader.batch import MicroBatch, SPSharding
from packer_cli.loader.parallel.sharding import local_indices


class Batch(dict[str, Any]):
    """A dictionary with exactly the keys that a trainer takes; what else is known of the batch stands beside it.

    Copies, pickles and goes through a DataLoader as a dictionary does, `metadata` with it. A framework that makes a
    new one of the keys (accelerate, Lightning, when they move a batch) leaves the metadata out; in formats whose keys
    hold them too, `metadata_of` finds them there.
    """

    metadata: dict[str, Any] | None

    def __init__(self, keys: Mapping[str, Any], metadata: dict[str, Any] | None = None) -> None:
        super().__init__(keys)
        self.metadata = metadata

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (dict(self), self.metadata)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One trainer's batches. Calling it is calling `adapt`."""

    adapt: Callable[[MicroBatch], Any]
    sp_slice: bool = True
    """Whether batches hold this rank's part of the row, or the whole row because the trainer slices it."""
    sp_sharding: SPSharding = "contiguous"
    """How the trainer shares a row among the ranks of an SP group."""
    align_samples: bool = False
    """Whether each sample must fill a multiple of 2 * sp_size tokens."""

    def __call__(self, micro: MicroBatch) -> Any:
        """The batch of `micro`."""
        return self.adapt(micro)


def metadata(micro: MicroBatch) -> dict[str, Any]:
    """What every format tells beside its own keys: Python ints, a string, and int64 [n] tensors."""
    row = micro.row
    return {
        "group": row.group,
        "sp_size": row.sp_size,
        "sp_rank": row.sp_rank,
        "sp_sharding": micro.sharding,
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
        "sample_num_loss_tokens": torch.from_numpy(micro.sample_num_loss_tokens),
        "pack_id": micro.pack_id,
    }


def segment_numbers(micro: MicroBatch) -> torch.Tensor:
    """int32 [t]: the segment of the row that each token of this rank is in, from 0; padding at the tail is one.

    Price: one pass that writes 4 bytes a token.
    """
    borders = micro.cu_seqlens
    numbers = np.arange(len(borders) - 1, dtype=np.int32)
    if micro.sliced:
        row = micro.row
        if micro.sharding == "contiguous":
            part = int(borders[-1]) // row.sp_size
            borders = np.clip(borders - row.sp_rank * part, 0, part)
        else:
            borders = local_indices(borders, row.sp_size, row.sp_rank, micro.sharding).searchsorted(borders)
    return torch.from_numpy(numbers.repeat(borders[1:] - borders[:-1]))


def strict_batch(micro: MicroBatch, keys: dict[str, Any]) -> Batch:
    """A batch of exactly `keys`, for trainers that choke on others; the metadata also tell the borders."""
    known = metadata(micro)
    known["cu_seqlens"] = torch.from_numpy(micro.cu_seqlens)
    return Batch(keys, known)


def open_batch(micro: MicroBatch, keys: dict[str, Any], borders: torch.Tensor) -> Batch:
    """A batch of `keys` and the metadata; `borders` are those of the row, flat, which `keys` hold too."""
    known = metadata(micro)
    keys.update(known)
    known["cu_seqlens"] = borders
    return Batch(keys, known)


def metadata_of(batch: Any) -> dict[str, Any]:
    """The metadata of a batch of any format, with `cu_seqlens` int32 [segments+1], the borders of its whole row.

    Raises TypeError for what did not come out of a `PackedDataset`, or lost its metadata on the way (a framework
    that rebuilt the dictionary of a format without them as keys): take them right after the loader.
    """
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    found = getattr(first, "metadata", None)
    if found is not None:
        return found
    if isinstance(first, Mapping):
        for name in ("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"):
            if name in first and "pack_id" in first:
                # Megatron's have a batch dimension, and its padded ones are the row's.
                return {**first, "cu_seqlens": first.get("cu_seqlens_padded", first[name]).flatten()}
    raise TypeError(
        f"a {type(batch).__name__} that carries no metadata: "
        "call metadata_of on what PackedDataset or its DataLoader gave, before a framework copies it"
    )
