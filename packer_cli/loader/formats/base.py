"""The base of all batch formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from packer_cli.loader.build_batch import BatchBuilder, MicroBatch, SPSharding


class Batch(dict[str, Any]):
    """A dictionary with exactly the keys that a trainer takes, and an attribute with everything else about the batch.

    It copies, pickles and goes through a DataLoader like a dictionary, together with `metadata`. Frameworks that
    create a new dictionary from the keys (accelerate and Lightning, when they move a batch) lose the metadata; if the
    format's keys include them, `metadata_of` finds them there.
    """

    metadata: dict[str, Any] | None

    def __init__(self, keys: Mapping[str, Any], metadata: dict[str, Any] | None = None) -> None:
        super().__init__(keys)
        self.metadata = metadata


@dataclass(frozen=True, kw_only=True)
class Format:
    """One trainer's batches."""

    adapt: Callable[[MicroBatch], Any]
    sp_slice: bool = True
    """Whether batches hold only this rank's part of the row; if not, the trainer slices it."""
    sp_sharding: SPSharding | None = None
    """Sharding of a row among the ranks that share it in the trainer; None: as `BatchBuilder.sp_sharding` says."""
    align_samples: bool = False
    """Whether to pad each sample to a multiple of the plan's `--align`, and of twice the ranks that share a row."""

    takes_weights: bool = False
    """Whether a batch has the weights of loss tokens, where the set has any."""
    positions_are_borders: bool = False
    """Whether the trainer takes position 0 for the first token of a sample, having no other borders."""
    builder: type[BatchBuilder] = BatchBuilder
    """Builder of its micro-batches, whose `unit` says which sets it reads."""


def metadata(micro: MicroBatch) -> dict[str, Any]:
    """Return the metadata of every format: ints, a string, and int64 [n] tensors; in a set with weights also floats.

    With a causal mask over the whole row, the borders of attention are not those of the samples: then
    `sample_borders`, int32 [n+1 or n+2], are theirs.

    In a set with trees the samples are branches: `branch_roles` and `item_ids` int64 [n], `rewards` float32 [n]; and
    of each item, or part of one, in the row, `item_kinds` and `item_branches` int64 [items], and `margin`,
    `ref_chosen_logps` and `ref_rejected_logps` float32 [items]; floats are NaN where there is none. `global_num_items`
    are those of the step, and `most_items` those of the pack of the iteration that has the most. Rows that keep their
    trees also have these (`segment_starts`, `segment_parents`, `branch_segments`, int32, of the whole row with its
    padding), and their loss terms, `token_index` and `segment_id`, see format "tree".
    """
    row, layout, pack = micro.row, micro.layout, micro.pack
    place = layout.place(row.place)
    weight = {}
    if micro.loss_weight is not None:
        weight = {"loss_weight": micro.loss_weight, "global_loss_weight": float(row.global_loss_weight)}
    is_causal = micro.builder.mask == "causal"
    own = {"sample_borders": torch.from_numpy(micro.sample_borders)} if is_causal else {}
    return {
        **own,
        **weight,
        **_of_items(micro),
        "group": row.group,
        **layout.sizes,
        **place._asdict(),
        "sp_sharding": micro.sharding,
        "dp_rank": row.dp_rank,
        "dp_size": row.dp_size,
        "checkpoint_layers": micro.builder.groups[row.group].checkpoint_layers,
        "epoch": micro.epoch,
        "step": row.step,
        "iteration": row.iteration,
        "num_samples": len(pack.sample_ids),
        "num_loss_tokens": pack.num_loss_tokens,
        "global_num_packs": row.global_num_packs,
        "global_num_samples": row.global_num_samples,
        "global_num_loss_tokens": row.global_num_loss_tokens,
        "sample_ids": torch.from_numpy(pack.sample_ids.copy()),
        "sample_num_loss_tokens": torch.from_numpy(micro.sample_num_loss_tokens),
        "pack_id": pack.pack_id,
    }


def _of_items(micro: MicroBatch) -> dict[str, Any]:
    """Return the metadata that only a set with trees has."""
    if not micro.items:
        return {}
    counts = {"global_num_items": micro.row.global_num_items, "most_items": micro.row.most_items}
    return {name: torch.from_numpy(value) for name, value in micro.items.items()} | counts


def tensors_of(micro: MicroBatch, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return arrays of a micro-batch as tensors, by a trainer's names for them."""
    return {name: torch.from_numpy(getattr(micro, own)) for name, own in names.items()}


def as_rows(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors [t] as [1, t]."""
    return {name: tensor[None] for name, tensor in tensors.items()}


def strict_batch(micro: MicroBatch, keys: Mapping[str, Any]) -> Batch:
    """Make a batch of exactly `keys`, for trainers that accept no others; the metadata also hold the borders."""
    return Batch(keys, metadata(micro) | {"cu_seqlens": torch.from_numpy(micro.cu_seqlens)})


def open_batch(micro: MicroBatch, keys: Mapping[str, Any], borders: torch.Tensor) -> Batch:
    """Make a batch of `keys` and the metadata; `borders` are the row's, flat, which `keys` also hold."""
    known = metadata(micro)
    return Batch({**keys, **known}, known | {"cu_seqlens": borders})


def is_list_of_batches(item: Any) -> bool:
    """Whether an item of a `PackedDataset` is a list of micro-batches (`--lockstep 1`), and not one batch.

    A DataLoader makes a list of a batch that is a pair, whose second part is a tensor.
    """
    return isinstance(item, list) and bool(item) and not any(isinstance(part, torch.Tensor) for part in item)


def metadata_of(batch: Any) -> dict[str, Any]:
    """Return the metadata of a batch of any format, with `cu_seqlens` int32 [segments+1], its whole row's borders.

    Raises:
        TypeError: this is not a batch of a `PackedDataset`, or it has lost its metadata because a framework copied
            it, in a format without them as keys: get them right after the loader. Or it is a list of micro-batches,
            each of which has its own.
    """
    if is_list_of_batches(batch):
        raise TypeError(
            f"this is a list of micro-batches ({len(batch)}), as lockstep=False gives them: call metadata_of "
            "on each of them"
        )
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    found: dict[str, Any] | None = getattr(first, "metadata", None)
    if found is not None:
        return found
    if isinstance(first, Mapping):
        for name in ("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"):
            if name in first and "pack_id" in first:
                # Megatron's borders have a batch dimension, and the row's are the padded ones.
                return {**first, "cu_seqlens": first.get("cu_seqlens_padded", first[name]).flatten()}
    raise TypeError(
        f"this {type(batch).__name__} has no metadata: "
        "call metadata_of on a batch of PackedDataset or its DataLoader, before a framework copies it"
    )
