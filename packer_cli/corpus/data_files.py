"""Formats that files' names say, and the files of a folder that are data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from packer_cli.corpus.blocks import Blocks, is_file
from packer_cli.corpus.readers.registry import READERS
from packer_cli.corpus.readers.stream import BOM, MAGIC, json_error
from packer_cli.corpus.readers.token_files import is_mask
from packer_cli.corpus.types import Compression, CorpusFile, FileFormat
from packer_cli.corpus.unchanged import size_of, stamp_of
from packer_cli.errors import InputError
from packer_cli.format.tokens import SkippedFiles
from packer_cli.sizes import counted, format_bytes

Kind = tuple[FileFormat, Compression]

FORMATS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".jsonlines": "jsonl",
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
INDEXED: tuple[FileFormat, ...] = ("megatron", "datatrove")
"""Formats of token ids with an index, the second of a file's parts, which must lie beside it."""
COMPRESSIONS: dict[str, Compression] = {".bz2": "bz2", ".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
COMPRESSIBLE: tuple[FileFormat, ...] = ("jsonl", "json", "text")
HEAD_BYTES = 1 << 20
"""Most bytes that tell what a file holds."""
ABOUT_THE_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")
"""Text files of these names in a folder are not data; named on their own they are read."""
BESIDE_THE_DATA = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "chat_template.jinja"),
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("dataset_info.json", "dataset_infos.json", "package.json", "package-lock.json"),
)
"""Files of tokenizers, models and packages in a folder are not data either, unless they are JSON that holds records;
named on their own they are read."""
COMPANIONS = (".idx", ".index", ".loss", ".metadata", ".crc")
"""Suffixes of what is read with a file of token ids, and of Hadoop's checksums."""
LEFTOVERS = {"_temporary", "_tmp", "_success", "_metadata", "_common_metadata", "_spark_metadata", "__macosx"}
"""Names that Spark and Hadoop leave beside the data or write about it; other names that begin with _ are counted."""


def known_formats() -> str:
    """List, for messages, the formats that hbpack reads."""
    *others, last = sorted(COMPRESSIONS)
    return f"hbpack reads {', '.join(sorted(FORMATS))}, and text and JSON also with {', '.join(others)} or {last}"


def listed_file(path: str, skipped: list[SkippedFiles], below: str, found: str | None = None) -> Iterator[CorpusFile]:
    """Yield the file, unless it is one of those that are passed over in folders and globs.

    Args:
        skipped: gets the file if it is not read, and not known to be no data.
        below: its path from the folder or pattern that was named.
        found: its stamp, if it is known already that this is a file.
    """
    name = os.path.basename(path).lower()
    if name.startswith(".") or name.endswith(COMPANIONS) or (found is None and not os.path.isfile(path)):
        return
    found = found or stamp_of(CorpusFile(0, path, "jsonl"))
    num_bytes = size_of(found)
    aside = [part for part in below.lower().split("/") if part.startswith("_")]  # As for Spark's own readers.
    if not num_bytes or not LEFTOVERS.isdisjoint(aside):
        return
    kind = None if aside else format_of(path)
    if not aside and kind in (None, ("text", "none")) and name.split(".")[0] in ABOUT_THE_DATA:
        return
    if name in BESIDE_THE_DATA and not (kind and kind[0] == "json" and _holds_records(path, num_bytes)):
        return
    if kind is not None and kind[0] in INDEXED:
        if is_mask(path):
            return  # It is read with its ids.
        kind = kind if is_file(READERS[kind[0]].parts(path)[1]) else None  # Other programs have .bin files, too.
    elif kind is None and not aside:
        kind = _kind_by_content(path, num_bytes)
    if kind is None:
        suffix = "_*" if aside else os.path.splitext(name)[1] or "no suffix"
        skipped.append(SkippedFiles(suffix=suffix, num_files=1, num_bytes=num_bytes))
        return
    yield _file(path, kind, found)


def by_suffix(skipped: Iterable[SkippedFiles]) -> tuple[SkippedFiles, ...] | None:
    """Sum the skipped files, one entry for each suffix, the largest first."""
    files, sizes = Counter[str](), Counter[str]()
    for each in skipped:
        files[each.suffix] += each.num_files
        sizes[each.suffix] += each.num_bytes
    named = sizes.most_common()
    return tuple(SkippedFiles(suffix=name, num_files=files[name], num_bytes=size) for name, size in named) or None


def shown_skipped(skipped: Sequence[SkippedFiles]) -> str:
    """Show the skipped files by suffix, for people."""
    first, rest = skipped[:4], skipped[4:]
    shown = [f"{counted(each.num_files, 'file')} of {each.suffix} ({format_bytes(each.num_bytes)})" for each in first]
    if rest:
        size = format_bytes(sum(each.num_bytes for each in rest))
        shown.append(f"{counted(sum(each.num_files for each in rest), 'file')} of other suffixes ({size})")
    return ", ".join(shown)


def format_of(path: str) -> Kind | None:
    """Return the format and compression that a path's suffixes say, None when they are unknown."""
    stem, suffix = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(suffix)
    if compression is None:
        kind = FORMATS.get(suffix)
        return None if kind is None else (kind, "none")
    kind = FORMATS.get(os.path.splitext(stem)[1])
    return (kind, compression) if kind in COMPRESSIBLE else None


def named_file(path: str, found: str | None = None) -> CorpusFile:
    """Return a file that is read whatever its name, as long as its suffix, or without one its content, says how.

    Args:
        found: its stamp, if it is known already that this is a file.

    Raises:
        InputError: its format is unknown, or it cannot be read.
    """
    if found is None and not os.path.isfile(path):
        raise InputError(f"{path}: not a regular file; write the data to a file first")
    kind = format_of(path) or _kind_by_content(path, size_of(found or stamp_of(CorpusFile(0, path, "jsonl"))))
    if kind is None:
        suffix = os.path.splitext(path)[1]
        what = f'unknown suffix "{suffix}"' if suffix else "no suffix, and neither JSON lines nor Parquet or Arrow"
        raise InputError(f"{path}: {what}; {known_formats()}")
    if kind[0] in INDEXED and not is_file(index := READERS[kind[0]].parts(path)[1]):
        raise InputError(f"{path}: has no index beside it; hbpack looks for {index}")
    return _file(path, kind, found)


def _file(path: str, kind: Kind, found: str | None) -> CorpusFile:
    form, compression = kind
    file = CorpusFile(source_id=0, path=path, format=form, compression=compression)
    if found is None or form in INDEXED:
        found = stamp_of(file)
    file = file._replace(num_bytes=size_of(found), stamp=found)
    return _array_or_lines(file) if form == "json" else file


def _kind_by_content(path: str, num_bytes: int) -> Kind | None:
    """Find the format of a file without a suffix, or with a number for one; None if unknown, as of any text."""
    suffix = os.path.splitext(path)[1]
    if suffix and not suffix[1:].isdigit():
        return None
    file = CorpusFile(0, path, "jsonl", num_bytes=num_bytes)
    begin = _head(file, 8)
    end = next((end for magic, end in MAGIC.items() if begin.startswith(magic)), ".jsonl")
    kind = format_of(f"data{end}")
    if kind and kind[0] == "jsonl" and not _num_objects(_head(file._replace(compression=kind[1]))):
        return None
    return kind


def _holds_records(path: str, num_bytes: int) -> bool:
    """Whether a `.json` is an array of objects, or JSON lines, and not the one object that configs are."""
    head = _head(CorpusFile(0, path, "json", num_bytes=num_bytes))
    return head[:1] + head[1:].lstrip()[:1] == b"[{" or _num_objects(head) == 2


def _head(file: CorpusFile, most: int = HEAD_BYTES) -> bytes:
    """Read the first two lines of a file behind blank ones, or about its first bytes."""
    head = b""
    with Blocks(file._replace(stamp="")) as blocks:  # Some storages list another ETag than they give.
        while head.count(b"\n") < 2 and len(head) < most and (block := blocks.read(min(most, 1 << 14))):
            head = (head + block).removeprefix(BOM).lstrip()
    return head


def _num_objects(head: bytes) -> int:
    """Count the JSON objects of the first two lines, up to another line; a long one need only begin as an object."""

    def is_object(line: bytes) -> bool:
        return line.startswith(b"{") and (len(line) >= HEAD_BYTES // 2 or json_error(line) is None)

    return len([*takewhile(is_object, head.split(b"\n")[:2])])


def _array_or_lines(file: CorpusFile) -> CorpusFile:
    """Tell a `.json` array from JSON lines by its first byte; one object over many lines is neither."""
    head = _head(file, 1 << 12)
    if head.startswith(b"["):
        return file
    if head.startswith(b"{") and not head[1:].split(b"\n")[0].strip() and b"\n" in head:
        raise InputError(
            f"{file.path}: holds one JSON object over several lines; "
            "hbpack reads an array of records, or one record a line; write it so, or leave the file out"
        )
    return file._replace(format="jsonl")
