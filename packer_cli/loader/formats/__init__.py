"""How trainers want a batch: one adapter a file, one registry.

An adapter takes a `MicroBatch` and gives the dictionary that `PackedDataset` returns. Every adapter adds the
metadata of `base.metadata`.
"""

from __future__ import annotations

from packer_cli.loader.formats import flash_attn, transformers
from packer_cli.loader.formats.base import Adapter

FORMATS: dict[str, Adapter] = {
    "transformers": transformers.adapt,
    "flash-attn": flash_attn.adapt,
}


def get_format(name: str) -> Adapter:
    """The adapter of that name; ValueError lists the known names."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown batch format {name!r}: choose one of {', '.join(sorted(FORMATS))}") from None
