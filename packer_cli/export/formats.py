"""The registry of export formats. A format's module is imported only when needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from packer_cli.errors import ConfigError
from packer_cli.plugins import Registry, unknown

if TYPE_CHECKING:
    from packer_cli.export.job import Format

FORMATS = {
    "megatron": "Megatron-Core's IndexedDataset: tokens.bin/.idx, and loss_mask.bin/.idx of the same shape.",
    "nemo": "Packed Parquet of NeMo and Megatron-Bridge: input_ids, loss_mask, seq_start_id.",
    "nemo-rl": "JSON lines of NeMo-RL's packed SFT: the messages of each pack, read again from the inputs.",
    "automodel": "A Hugging Face data set as NeMo Automodel packs it: full rows, seq_lens, seq_lens_padded.",
    "trl": "A Hugging Face data set as TRL packs it: input_ids, labels, seq_lengths.",
    "llamafactory": "A Hugging Face data set for LLaMA-Factory's tokenized_path: full rows, attention_mask of 1..n.",
    "ms-swift": "A Hugging Face data set for ms-swift's cached_dataset: its sequential packing gives the packs back.",
    "xtuner": "XTuner's preset packs and sampler order, with the samples as JSON lines.",
    "parquet": "Plain Parquet: the columns of the shards, but with int32 ids and a loss mask.",
    "mds": "MosaicML Streaming's MDS shards.",
}
"""Name -> summary; `packer_cli.export.<name>`, with `_` for `-`, holds the class `Exporter`."""


def _take_export(name: str, thing: Any) -> Format:
    from packer_cli.export.job import Format

    format = thing() if isinstance(thing, type) else thing
    if not isinstance(format, Format):
        raise TypeError(f"it must be a Format of packer_cli.export.job, not {type(format).__name__}")
    return format


OTHERS: Registry[Format] = Registry("exports", "format", {}, _take_export)
"""Formats of other packages."""


def load_format(name: str) -> Format:
    """Load the format with that name.

    Raises:
        ConfigError: there is none.
    """
    if name in FORMATS:
        format: Format = importlib.import_module(f"packer_cli.export.{name.replace('-', '_')}").Exporter()
        return format
    if name not in OTHERS:
        raise ConfigError(f"--to: {unknown('format', name, format_names())}")
    return OTHERS[name]


def format_names() -> list[str]:
    """Return all names, those of other packages included."""
    return [*FORMATS, *(name for name in OTHERS.names() if name not in FORMATS)]
