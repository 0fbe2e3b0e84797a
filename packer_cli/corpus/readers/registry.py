"""Every file format and what reads it."""

from __future__ import annotations

from packer_cli.corpus.readers import arrow, datatrove, flat, hf, json_array, jsonl, megatron, parquet, text
from packer_cli.corpus.readers.base import FileReader
from packer_cli.corpus.types import FileFormat

READERS: dict[FileFormat, FileReader] = {
    "jsonl": jsonl.READER,
    "json": json_array.READER,
    "parquet": parquet.READER,
    "arrow": arrow.READER,
    "text": text.READER,
    "datasets": hf.READER,
    "megatron": megatron.READER,
    "datatrove": datatrove.READER,
    "flat": flat.READER,
}
"""Every file format by the name in `CorpusFile.format`."""

TOKEN_FORMATS: tuple[FileFormat, ...] = ("megatron", "datatrove", "flat")
"""Formats that hold token ids and no other records."""
