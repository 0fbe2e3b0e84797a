"""File readers: one format a file, one signature (`FileReader`), one registry."""

from packer_cli.corpus.readers.registry import READERS, TOKEN_FORMATS

__all__ = ["READERS", "TOKEN_FORMATS"]
