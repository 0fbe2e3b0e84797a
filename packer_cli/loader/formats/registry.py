"""The registry of batch formats.

An adapter converts a `MicroBatch` to the batch that `PackedDataset` returns: a `Batch`, or for torchtitan a pair that
begins with one. `metadata_of` returns the metadata of any of them.
"""

from __future__ import annotations

from typing import Any

from packer_cli.loader.formats import flat, megatron, transfer, tree  # noqa: F401  (transfer: how batches are pickled)
from packer_cli.loader.formats.base import Format
from packer_cli.loader.trees import PairBuilder, TreeBuilder
from packer_cli.plugins import Registry

_OF_MEGATRON: dict[str, Any] = {
    "sp_slice": False, "sp_sharding": "document", "align_samples": True, "takes_weights": True
}  # fmt: skip
_OWN = {
    "transformers": Format(adapt=flat.adapt_transformers, takes_weights=True),
    "flash-attn": Format(adapt=flat.adapt_flash_attn, takes_weights=True),
    "torchtitan": Format(
        adapt=flat.adapt_torchtitan, positions_are_borders=True, sp_slice=False, sp_sharding="zigzag"
    ),
    "megatron": Format(adapt=megatron.adapt_row, **_OF_MEGATRON),
    "megatron-thd": Format(adapt=megatron.adapt_thd, **_OF_MEGATRON),
    "deepspeed": Format(adapt=flat.adapt_deepspeed, positions_are_borders=True),
    "torchtune": Format(adapt=flat.adapt_torchtune, sp_slice=False, sp_sharding="zigzag"),
    "tree": Format(adapt=tree.adapt, takes_weights=True, builder=TreeBuilder),
    "tree-flex": Format(adapt=tree.adapt_flex, takes_weights=True, builder=TreeBuilder),
    # Flat preference pairs, as ms-swift orders them: `cu_seq_lens_q/k` int32 [2B+1], and [2B+2] with padding. Sample b
    # is the chosen one of pair b, and sample B + b the rejected one. They share nothing, so a row may be longer than
    # the capacity, by the prefixes that are there twice.
    "pairs": Format(adapt=flat.adapt_transformers, takes_weights=True, builder=PairBuilder),
}


def take_format(name: str, thing: Any) -> Format:
    """Take the format that another package brings. Raises TypeError if it is none."""
    if not isinstance(thing, Format):
        raise TypeError(f"it must be a Format, not {type(thing).__name__}")
    return thing


FORMATS: Registry[Format] = Registry("formats", "batch format", _OWN, take_format)
"""By name."""
