"""The registry of export formats. A format's module is imported only when needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from packer_cli.errors import ConfigError
from packer_cli.plugins import Registry

if TYPE_CHECKING:
    from packer_cli.export.job import Format

OWN = {
    "megatron": "megatron:Exporter",  # Megatron-Core's IndexedDataset, of the tokens and of the loss mask.
    "nemo": "nemo:Exporter",  # Packed Parquet of NeMo and Megatron-Bridge.
    "nemo-rl": "nemo_rl:Exporter",  # JSON lines of NeMo-RL's packed SFT: messages, read again from the inputs.
    "automodel": "saved:Automodel",
    "trl": "saved:Trl",
    "llamafactory": "saved:LlamaFactory",
    "ms-swift": "saved:MsSwift",
    "xtuner": "xtuner:Exporter",  # XTuner's preset packs and sampler order, with the samples as JSON lines.
    "parquet": "parquet:Exporter",  # The columns of the shards, but with int32 ids and a loss mask.
    "mds": "mds:Exporter",  # MosaicML Streaming's shards.
}
"""Name -> module of `packer_cli.export`, and class."""


class _Own(Mapping[str, "Format"]):
    """Formats of hbpack's own, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Format:
        module, _, kind = OWN[name].partition(":")
        format: Format = getattr(importlib.import_module(f"packer_cli.export.{module}"), kind)()
        return format

    def __iter__(self) -> Iterator[str]:
        return iter(OWN)

    def __len__(self) -> int:
        return len(OWN)


def _take_export(name: str, thing: Any) -> Format:
    from packer_cli.export.job import Format

    format = thing() if isinstance(thing, type) else thing
    if not isinstance(format, Format):
        raise TypeError(f"it must be a Format of packer_cli.export.job, not {type(format).__name__}")
    return format


FORMATS: Registry[Format] = Registry("exports", "format", _Own(), _take_export)
"""All formats, those of other packages included."""


def load_format(name: str) -> Format:
    """Load the format with that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"--to: {FORMATS.unknown(name)}")
    return FORMATS[name]
