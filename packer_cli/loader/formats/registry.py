"""The registry of batch formats.

An adapter converts a `MicroBatch` to the batch that `PackedDataset` returns: a `Batch`, or for torchtitan a pair that
begins with one. `metadata_of` returns the metadata of any of them.
"""

from __future__ import annotations

from packer_cli.loader.formats import (
    deepspeed,
    flash_attn,
    megatron,
    torchtitan,
    torchtune,
    transfer,  # noqa: F401  (registers how batches are pickled)
    transformers,
)
from packer_cli.loader.formats.base import Format

FORMATS: dict[str, Format] = {
    "transformers": transformers.FORMAT,
    "flash-attn": flash_attn.FORMAT,
    "torchtitan": torchtitan.FORMAT,
    "megatron": megatron.ROW_FORMAT,
    "megatron-thd": megatron.THD_FORMAT,
    "deepspeed": deepspeed.FORMAT,
    "torchtune": torchtune.FORMAT,
}


def get_format(name: str) -> Format:
    """The format with this name; for an unknown one, a ValueError lists the names."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown batch format {name!r}: choose one of {', '.join(sorted(FORMATS))}") from None
