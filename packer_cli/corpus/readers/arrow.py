"""Arrow IPC, as a file (Feather 2: record batches can be addressed) or as a stream (one slice).

Memory: the file is mapped; one batch is turned into Python at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packer_cli.corpus.blocks import changed, fingerprint, open_source, readable, unreadable, why_damaged
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.parquet import cut_units
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap
from packer_cli.errors import HbpackError

FILE_MAGIC = b"ARROW1"


@contextmanager
def _open(path: str, first_field_only: bool = False) -> Iterator[tuple[Any, bool]]:
    """(reader, whether it is an IPC file); raises InputError when it is neither file nor stream."""
    import pyarrow as pa

    with open_source(path) as source:
        try:
            is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
            source.seek(0)
            # One field is enough to count rows, and saves decompressing the others.
            options = pa.ipc.IpcReadOptions(included_fields=[0] if first_field_only else [])
            open_ipc = pa.ipc.open_file if is_file else pa.ipc.open_stream
            reader = open_ipc(source, options=options)
        except HbpackError:
            raise
        except Exception as error:
            raise unreadable(path, f"not an Arrow IPC file or stream ({error})") from error
        with reader:
            yield reader, is_file


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Record batches up to `slice_bytes` by their share of rows; a stream is one slice, 0..1."""
    with _open(file.path, first_field_only=True) as (reader, is_file):
        rows: list[int] = []
        if is_file:
            with readable(file.path):
                rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    done = file._replace(fingerprint=fingerprint(file.path))
    if not is_file:
        return [CorpusSlice(file=done, start=0, stop=1)]
    total = max(sum(rows), 1)
    sizes = [(count, file.num_bytes * count // total) for count in rows]
    return cut_units(done, sizes, slice_bytes or default_slice_bytes(file.num_bytes))


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The rows of the slice; where it is damaged, what follows is lost and one reject says so."""
    from packer_cli.corpus.readers.columns import raw_batches

    row = slice_.first_line
    with _open(slice_.file.path) as (reader, is_file):
        if is_file and slice_.stop > reader.num_record_batches:
            raise changed(slice_.file.path)
        wholes = map(reader.get_batch, range(slice_.start, slice_.stop)) if is_file else iter(reader)
        number = slice_.start
        try:
            for whole in wholes:
                yield from raw_batches(whole, row, rules, fields)
                row += whole.num_rows
                number += 1
        except Exception as error:
            reason = why_damaged(slice_.file.path, error)
            rest = "the rest of this slice is lost" if is_file else "the rest of the stream is lost"
            yield RawBatch(rejects=[Gap(row, f"record batch {number} cannot be read ({reason}); {rest}")])


READER = FileReader(cut, read)
