"""Arrow IPC, as a file (Feather 2: record batches can be addressed) or as a stream (one slice).

Memory: the file is mapped; one batch is turned into Python at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.blocks import Progress, fingerprint, unreadable
from packer_cli.corpus.readers.base import FileReader, RawBatch, default_slice_bytes
from packer_cli.corpus.readers.columns import raw_batch
from packer_cli.corpus.readers.parquet import cut_units, share
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject

if TYPE_CHECKING:
    import pyarrow as pa

FILE_MAGIC = b"ARROW1"


@contextmanager
def _open(path: str, first_field_only: bool = False) -> Iterator[tuple[Any, bool, Any]]:
    """(reader, whether it is an IPC file, the mapped file); raises InputError when it is neither file nor stream."""
    import pyarrow as pa

    try:
        source = pa.memory_map(path, "rb")
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    with source:
        try:
            is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
            source.seek(0)
            # One field is enough to count rows, and saves decompressing the others.
            options = pa.ipc.IpcReadOptions(included_fields=[0] if first_field_only else [])
            open_ipc = pa.ipc.open_file if is_file else pa.ipc.open_stream
            reader = open_ipc(source, options=options)
        except (pa.ArrowException, OSError) as error:
            raise unreadable(path, f"no Arrow IPC file or stream ({error})") from error
        with reader:
            yield reader, is_file, source


def cut(file: CorpusFile, slice_bytes: int | None, progress: Progress | None) -> list[CorpusSlice]:
    """Record batches up to `slice_bytes` by their share of rows; a stream is one slice, 0..1."""
    import pyarrow as pa

    with _open(file.path, first_field_only=True) as (reader, is_file, _):
        rows: list[int] = []
        if is_file:
            try:
                rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
            except (pa.ArrowException, OSError) as error:
                raise unreadable(file.path, error) from error
    done = replace(file, fingerprint=fingerprint(file.path, progress=progress))
    if not is_file:
        return [CorpusSlice(file=done, start=0, stop=1)]
    total = max(sum(rows), 1)
    sizes = [(count, file.num_bytes * count // total) for count in rows]
    return cut_units(done, sizes, slice_bytes or default_slice_bytes(file.num_bytes))


def read(piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The rows of the slice; where a stream breaks off, the rest of it is lost and one reject says so."""
    import pyarrow as pa

    row = piece.first_line
    with _open(piece.file.path) as (reader, is_file, source):
        if is_file:
            yield from _read_file(reader, piece, batch_bytes, fields)
            return
        broken, consumed = "", 0
        while True:
            try:
                whole = reader.read_next_batch()
            except StopIteration:
                break
            except (pa.ArrowException, OSError) as error:
                broken = " ".join(str(error).split())
                break
            for part in _parts(whole, batch_bytes):
                batch = raw_batch(part, row, fields)
                batch.num_bytes, consumed = source.tell() - consumed, source.tell()
                row += part.num_rows
                yield batch
    last = RawBatch(num_bytes=piece.file.num_bytes - consumed)
    if broken:
        last.rejects.append(Reject(row, f"the Arrow stream breaks off ({broken}); the rest of it is lost"))
    if last.rejects or last.num_bytes:
        yield last


def _read_file(reader: Any, piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    import pyarrow as pa

    row, total = piece.first_line, _count_rows(reader)
    for index in range(piece.start, piece.stop):
        try:
            whole = reader.get_batch(index)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            lost = f"record batch {index} cannot be read ({reason}); the rest of this slice is lost"
            yield RawBatch(rejects=[Reject(row, lost)])
            return
        for part in _parts(whole, batch_bytes):
            batch = raw_batch(part, row, fields)
            batch.num_bytes = share(piece.file.num_bytes, row, part.num_rows, total)
            row += part.num_rows
            yield batch


def _count_rows(reader: Any) -> int:
    import pyarrow as pa

    try:
        return max(reader.count_rows(), 1)
    except AttributeError:  # pyarrow before 23
        batches = range(reader.num_record_batches)
        try:
            return max(sum(reader.get_batch(i).num_rows for i in batches), 1)
        except pa.ArrowException:
            return 1


def _parts(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """A record batch in views of about `batch_bytes`."""
    rows = max(1, batch_bytes * batch.num_rows // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


READER = FileReader(cut, read)
