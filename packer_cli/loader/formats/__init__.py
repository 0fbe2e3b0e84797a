"""Batch formats of trainers: one adapter per file, and a registry."""

from packer_cli.loader.formats.base import Batch, Format, metadata_of
from packer_cli.loader.formats.registry import FORMATS

__all__ = ["FORMATS", "Batch", "Format", "metadata_of"]
