"""Plain text: a whole file is one document (a book), however long; no line of it is a record of its own.

Memory: the file. Text with one record a line belongs in JSON lines.
"""

from __future__ import annotations

from collections.abc import Iterator

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules
from packer_cli.corpus.readers.stream import whole_slice
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Return one slice, as the file is one document."""
    return [whole_slice(file)]


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read one record `{"text": ...}` at line 1; a text that is too long or cut short is rejected whole."""
    parts: list[bytes] = []
    size = 0
    with Blocks(slice_.file, max_record_bytes=rules.max_record_bytes) as blocks:
        while size <= rules.max_record_bytes and (part := blocks.read(rules.batch_bytes)):
            parts.append(part)
            size += len(part)
        broken = blocks.broken
    batch = RawBatch()
    if size > rules.max_record_bytes:
        batch.rejects.append(Reject(1, rules.too_long()))
    elif broken:
        batch.rejects.append(Reject(1, f"{broken}; the text is incomplete"))
    else:
        data = b"".join(parts)
        try:
            batch.records.append((1, {"text": data.decode("utf-8").removeprefix("\ufeff")}))
        except UnicodeDecodeError as error:
            reason = f"invalid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} of the file"
            batch.rejects.append(Reject(1, reason))
    yield batch


READER = FileReader(cut, read)
