"""Arrow IPC, as a file (Feather 2: record batches can be addressed) or as a stream (one slice).

Memory: the file is mapped; one batch is turned into Python at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from packer_cli.corpus.blocks import changed, open_source, readable, unreadable, why_damaged, with_spans
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.parquet import cut_units
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap
from packer_cli.errors import HbpackError
from packer_cli.remote.system import is_url

FILE_MAGIC = b"ARROW1"


@contextmanager
def _open(path: str, first_field_only: bool = False) -> Iterator[tuple[Any, bool]]:
    """Open (reader, whether it is an IPC file); raises InputError when the file is neither file nor stream."""
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
    """Cut record batches up to `slice_bytes` by their share of rows; a stream is one slice, 0..1."""
    with _open(file.path, first_field_only=True) as (reader, is_file):
        rows: list[int] = []
        if is_file:
            with readable(file.path):
                rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    if not is_file:
        return with_spans([CorpusSlice(file=file, start=0, stop=1)], [(0, file.num_bytes)], [file.path])
    total = max(sum(rows), 1)
    sizes = [(count, file.num_bytes * count // total) for count in rows]
    slices = cut_units(file, sizes, slice_bytes or default_slice_bytes(file.num_bytes))
    places = [] if is_url(file.path) else _places(file.path)
    if len(places) <= len(rows):  # A damaged file: reading it says how.
        places = [file.num_bytes] * (len(rows) + 1)
    return with_spans(slices, [(places[each.start], places[each.stop]) for each in slices], [file.path])


def _places(path: str) -> list[int]:
    """Find the bytes where the record batches of an IPC file begin, and where the last one ends."""
    import pyarrow as pa

    places = []
    with open_source(path) as source, suppress(pa.ArrowException, OSError):
        source.seek(8)
        end = source.tell()
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type == "record batch":
                places.append(end)
            end = source.tell()
        places.append(end)
    return places


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the rows of the slice; where it is damaged, what follows is lost and one reject says so."""
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
