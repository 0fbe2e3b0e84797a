"""Every file format and its reader."""

from __future__ import annotations

from packer_cli.corpus.readers import hf, tables, text, token_files
from packer_cli.corpus.readers.base import FileReader
from packer_cli.corpus.types import FileFormat

READERS: dict[FileFormat, FileReader] = {
    "jsonl": text.LINES,
    "json": text.ARRAYS,
    "parquet": tables.PARQUET,
    "arrow": tables.ARROW,
    "text": text.TEXT,
    "datasets": hf.READER,
    "megatron": token_files.MEGATRON,
    "datatrove": token_files.DATATROVE,
    "flat": token_files.FLAT,
}
"""Every file format by the name in `CorpusFile.format`."""

TOKEN_FORMATS: tuple[FileFormat, ...] = ("megatron", "datatrove", "flat")
"""Formats that hold token ids and no other records."""
