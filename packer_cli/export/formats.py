"""The registry of export formats. A format's module is imported only when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.errors import ConfigError
from packer_cli.plugins import Registry

if TYPE_CHECKING:
    from packer_cli.export.job import Format

OWN = {
    "megatron": "packer_cli.export.binary:Megatron",
    "nemo": "packer_cli.export.parquet:Nemo",
    "nemo-rl": "packer_cli.export.nemo_rl:Exporter",
    "automodel": "packer_cli.export.saved:Automodel",
    "trl": "packer_cli.export.saved:Trl",
    "llamafactory": "packer_cli.export.saved:LlamaFactory",
    "ms-swift": "packer_cli.export.saved:MsSwift",
    "xtuner": "packer_cli.export.xtuner:Exporter",
    "parquet": "packer_cli.export.parquet:Plain",
    "mds": "packer_cli.export.binary:Mds",
}
"""Formats of hbpack's own by name."""


def _take_export(name: str, thing: Any) -> Format:
    from packer_cli.export.job import Format

    format = thing() if isinstance(thing, type) else thing
    if not isinstance(format, Format):
        raise TypeError(f"it must be a Format of packer_cli.export.job, not {type(format).__name__}")
    return format


FORMATS: Registry[Format] = Registry("exports", "format", OWN, _take_export)
"""All formats, those of other packages included."""


def load_format(name: str) -> Format:
    """Load the format with that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"--to: {FORMATS.unknown(name)}")
    return FORMATS[name]
