"""Parquet: a slice is consecutive row groups; only the columns that a record shape knows are decoded.

Memory: one decoded batch and the compressed row group it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from packer_cli.corpus.blocks import Progress, fingerprint, unreadable
from packer_cli.corpus.readers.base import FileReader, RawBatch, default_slice_bytes
from packer_cli.corpus.readers.columns import raw_batch
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Reject

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def _open(path: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error


def cut(file: CorpusFile, slice_bytes: int | None, progress: Progress | None) -> list[CorpusSlice]:
    """Row groups up to `slice_bytes` of uncompressed data by the footer, one at least."""
    with _open(file.path) as table:
        groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    limit = slice_bytes or default_slice_bytes(sum(size for _, size in sizes))
    done = replace(file, fingerprint=fingerprint(file.path, progress=progress))
    return cut_units(done, sizes, limit)


def cut_units(file: CorpusFile, sizes: list[tuple[int, int]], limit: int) -> list[CorpusSlice]:
    """Slices of consecutive units (rows, bytes), each up to `limit` bytes but never less than one unit."""
    slices: list[CorpusSlice] = []
    start, first_row, row, held = 0, 1, 1, 0
    for index, (num_rows, num_bytes) in enumerate(sizes):
        if index > start and held + num_bytes > limit:
            slices.append(CorpusSlice(file=file, start=start, stop=index, first_line=first_row))
            start, first_row, held = index, row, 0
        row += num_rows
        held += num_bytes
    if sizes:
        slices.append(CorpusSlice(file=file, start=start, stop=len(sizes), first_line=first_row))
    return slices


def share(file_bytes: int, first_row: int, num_rows: int, total_rows: int) -> int:
    """The bytes of a file that rows `first_row` (from 1) and on stand for; shares add up to the file."""
    before = first_row - 1
    return file_bytes * (before + num_rows) // total_rows - file_bytes * before // total_rows


def read(piece: CorpusSlice, batch_bytes: int, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The rows of the slice's row groups; one that breaks is lost from there on, the next ones are read."""
    import pyarrow as pa

    row = piece.first_line
    with _open(piece.file.path) as table:
        total = table.metadata.num_rows
        columns = [name for name in table.schema_arrow.names if name in fields]
        for index in range(piece.start, piece.stop):
            group = table.metadata.row_group(index)
            stop = row + group.num_rows
            rows_a_batch = max(1, batch_bytes * group.num_rows // max(group.total_byte_size, 1))
            try:
                for part in table.iter_batches(batch_size=rows_a_batch, row_groups=[index], columns=columns or None):
                    batch = raw_batch(part, row, fields)
                    batch.num_bytes = share(piece.file.num_bytes, row, part.num_rows, total)
                    row += part.num_rows
                    yield batch
            except (pa.ArrowException, OSError) as error:
                reason = " ".join(str(error).split())
                lost = f"row group {index} cannot be read ({reason}); its rows {row} to {stop - 1} are lost"
                num_bytes = share(piece.file.num_bytes, row, stop - row, total)
                yield RawBatch(rejects=[Reject(row, lost)], num_bytes=num_bytes)
            row = stop


READER = FileReader(cut, read)
