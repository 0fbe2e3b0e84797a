"""The registry of batch formats.

An adapter converts a `MicroBatch` to the batch that `PackedDataset` returns: a `Batch`, or for torchtitan a pair that
begins with one. `metadata_of` returns the metadata of any of them.
"""

from __future__ import annotations

from typing import Any

from packer_cli.loader.formats import (
    deepspeed,
    flash_attn,
    megatron,
    torchtitan,
    torchtune,
    transfer,  # noqa: F401  (registers how batches are pickled)
    transformers,
    tree,
)
from packer_cli.loader.formats.base import Format
from packer_cli.plugins import Registry

_OWN = {
    "transformers": transformers.FORMAT,
    "flash-attn": flash_attn.FORMAT,
    "torchtitan": torchtitan.FORMAT,
    "megatron": megatron.ROW_FORMAT,
    "megatron-thd": megatron.THD_FORMAT,
    "deepspeed": deepspeed.FORMAT,
    "torchtune": torchtune.FORMAT,
    "tree": tree.FORMAT,
    "tree-flex": tree.FLEX_FORMAT,
    "pairs": transformers.PAIR_FORMAT,
}


def take_format(name: str, thing: Any) -> Format:
    """Take the format that another package brings. Raises TypeError if it is none."""
    if not isinstance(thing, Format):
        raise TypeError(f"it must be a Format, not {type(thing).__name__}")
    return thing


FORMATS: Registry[Format] = Registry("formats", "batch format", _OWN, take_format)
"""By name."""


def get_format(name: str) -> Format:
    """Return the format with this name; for an unknown one, a ValueError lists the names."""
    if name not in FORMATS:
        raise ValueError(FORMATS.unknown(name))
    return FORMATS[name]
