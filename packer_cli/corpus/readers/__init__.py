"""File readers: one format a file, one signature (`FileReader`), one registry."""

from packer_cli.corpus.readers.registry import READERS

__all__ = ["READERS"]
