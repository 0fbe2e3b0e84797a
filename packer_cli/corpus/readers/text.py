"""Plain text: a whole file is one document (a book), however long; no line of it is a record of its own.

Memory: the file. Text with one record a line belongs in JSON lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packer_cli.corpus.blocks import Blocks, Progress, fingerprint
from packer_cli.corpus.readers.base import FileReader, RawBatch
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject


def cut(file: CorpusFile, slice_bytes: int | None, progress: Progress | None) -> list[CorpusSlice]:
    """One slice, as the file is one document."""
    done = replace(file, fingerprint=fingerprint(file.path, progress=progress))
    return [CorpusSlice(file=done, start=0, stop=file.num_bytes)]


def read(piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    """One record `{"text": ...}` at line 1; a text cut short by a broken compression is rejected whole."""
    batch = RawBatch()
    with Blocks(piece.file) as blocks:
        data = b"".join(iter(lambda: blocks.read(batch_bytes), b""))
        batch.num_bytes = piece.file.num_bytes
        if blocks.broken:
            batch.rejects.append(Reject(1, f"{blocks.broken}; the text is incomplete"))
            yield batch
            return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} of the file"
        batch.rejects.append(Reject(1, reason))
    else:
        batch.records.append((1, {"text": text.removeprefix("\ufeff")}))
    yield batch


READER = FileReader(cut, read)
