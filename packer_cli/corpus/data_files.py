"""What a file's name says of its format, and which files of a folder are data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Literal

from packer_cli.corpus.blocks import Blocks, is_file
from packer_cli.corpus.readers import datatrove, megatron
from packer_cli.corpus.readers.stream import BOM
from packer_cli.corpus.types import CorpusFile, FileFormat
from packer_cli.corpus.versions import size_of, stamp_of
from packer_cli.errors import InputError

FORMATS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".bin": "megatron",
    ".ds": "datatrove",
    ".npy": "flat",
}
"""Suffix -> format; `.json` that does not begin with [ is read as JSON lines."""
INDEXED: dict[FileFormat, Callable[[str], str]] = {
    "megatron": megatron.index_path,
    "datatrove": datatrove.index_path,
}
"""Formats of token ids, and the index that must lie beside a file of each."""
COMPRESSIONS: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}
COMPRESSIBLE: tuple[FileFormat, ...] = ("jsonl", "json", "text")
ABOUT_THE_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")
"""Text files of these names in a folder are not data; named on their own they are read."""
BESIDE_THE_DATA = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json"),
    *("vocab.json", "vocab.txt", "merges.txt"),
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("dataset_info.json", "dataset_infos.json", "package.json", "package-lock.json"),
)
"""Files of tokenizers, models and packages in a folder are not data either; named on their own they are read."""


def known_formats() -> str:
    """For messages: what hbpack reads."""
    return f"hbpack reads {', '.join(sorted(FORMATS))}, and text and JSON also with .gz or .zst"


def listed_file(path: str, source_id: int, found: str | None = None) -> Iterator[CorpusFile]:
    """The file, unless it is one of those that are passed over in folders and globs.

    Args:
        found: its stamp, if it is known already that this is a file.
    """
    name = os.path.basename(path)
    kind = format_of(path)
    if name.startswith(".") or kind is None or (found is None and not os.path.isfile(path)):
        return
    if kind[0] in INDEXED and (not is_file(INDEXED[kind[0]](path)) or megatron.is_mask(path)):
        return  # Other programs' .bin files, or a mask that is read with its ids.
    if name.lower() in BESIDE_THE_DATA or (kind[0] == "text" and name.split(".")[0].lower() in ABOUT_THE_DATA):
        return
    if found is None or size_of(found):
        file = _file(path, source_id, kind, found)
        if file.num_bytes:
            yield file


def format_of(path: str) -> tuple[FileFormat, Literal["none", "gzip", "zstd"]] | None:
    """The format and compression that a path's suffixes say, None when they are unknown."""
    stem, suffix = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(suffix)
    if compression is None:
        kind = FORMATS.get(suffix)
        return None if kind is None else (kind, "none")
    kind = FORMATS.get(os.path.splitext(stem)[1])
    return (kind, compression) if kind in COMPRESSIBLE else None


def named_file(path: str, source_id: int, found: str | None = None) -> CorpusFile:
    """A file that is read whatever its name, as long as the suffix says how.

    Args:
        found: its stamp, if it is known already that this is a file.

    Raises:
        InputError: its format is unknown, or it cannot be read.
    """
    kind = format_of(path)
    if kind is None:
        suffix = os.path.splitext(path)[1]
        what = f'unknown suffix "{suffix}"' if suffix else "no suffix"
        raise InputError(f"{path}: {what}; {known_formats()}")
    if found is None and not os.path.isfile(path):
        raise InputError(f"{path}: not a regular file; write the data to a file first")
    if kind[0] in INDEXED and not is_file(index := INDEXED[kind[0]](path)):
        raise InputError(f"{path}: has no index beside it; hbpack looks for {index}")
    return _file(path, source_id, kind, found)


def _file(
    path: str, source_id: int, kind: tuple[FileFormat, Literal["none", "gzip", "zstd"]], found: str | None
) -> CorpusFile:
    form, compression = kind
    file = CorpusFile(source_id=source_id, path=path, format=form, compression=compression)
    if found is None or form in INDEXED:
        found = stamp_of(file)
    file = file._replace(num_bytes=size_of(found), stamp=found)
    return _array_or_lines(file) if form == "json" else file


def _array_or_lines(file: CorpusFile) -> CorpusFile:
    """Tell a `.json` array from JSON lines by its first byte; one object over many lines is neither."""
    with Blocks(file) as blocks:
        head = b""
        while not head.strip() and (block := blocks.read(1 << 12)):
            head = block.removeprefix(BOM)
    head = head.lstrip()
    if head.startswith(b"["):
        return file
    if head.startswith(b"{") and not head[1:].split(b"\n")[0].strip() and b"\n" in head:
        raise InputError(
            f"{file.path}: holds one JSON object over several lines; "
            "hbpack reads an array of records, or one record a line; write it so, or leave the file out"
        )
    return file._replace(format="jsonl")
