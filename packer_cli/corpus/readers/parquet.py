"""Parquet: a slice is consecutive row groups; only the columns that a record shape knows are decoded.

Memory: one decoded batch and the compressed row group it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.blocks import changed, fingerprint, open_source, readable, why_damaged
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.records.unused import MEDIA
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap
from packer_cli.remote.system import is_url

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_ROWS = 64
"""Most rows that are decoded at once: a page may give the same long text to each."""
MOST_RATIO = 64
"""Ordinary text is compressed 2 to 10 fold."""
MOST_DICTIONARY = 4 << 20
"""Writers end a dictionary page at 1 MiB unless told otherwise."""


def _open(path: str, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    with readable(path):
        # The column chunks of a URL are requested at once, not page by page.
        source = open_source(path) if is_url(path) else path
        return pq.ParquetFile(source, read_dictionary=list(read_dictionary), pre_buffer=is_url(path))


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut row groups up to `slice_bytes` of uncompressed data by the footer, one at least."""
    with _open(file.path) as table:
        groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    limit = slice_bytes or default_slice_bytes(sum(size for _, size in sizes))
    done = file._replace(fingerprint=fingerprint(file.path))
    return cut_units(done, sizes, limit)


def cut_units(file: CorpusFile, sizes: list[tuple[int, int]], limit: int) -> list[CorpusSlice]:
    """Cut slices of consecutive units (rows, bytes), each up to `limit` bytes but never less than one unit."""
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


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the rows of the slice's row groups; one that breaks is lost from there on, the next ones are read."""
    from packer_cli.corpus.readers.columns import raw_batches

    row = slice_.first_line
    with ExitStack() as stack:
        table = stack.enter_context(_open(slice_.file.path))
        columns = _columns(table, fields)
        if slice_.stop > table.metadata.num_row_groups:
            raise changed(slice_.file.path)
        shared: pq.ParquetFile | None = None
        for index in range(slice_.start, slice_.stop):
            group = table.metadata.row_group(index)
            stop = row + group.num_rows
            source = table
            if _explodes(group):
                shared = shared or stack.enter_context(_open(slice_.file.path, _texts(table)))
                source = shared
            rows = max(1, min(BATCH_ROWS, rules.batch_bytes * group.num_rows // max(group.total_byte_size, 1)))
            try:
                # Workers share the cores already, and handing rows to threads costs as much again as reading them.
                for part in source.iter_batches(rows, [index], columns or None, use_threads=False):
                    yield from raw_batches(part, row, rules, fields)
                    row += part.num_rows
            except Exception as error:
                reason = why_damaged(slice_.file.path, error)
                lost = f"row group {index} cannot be read ({reason}); its rows {row} to {stop - 1} are lost"
                yield RawBatch(rejects=[Gap(row, lost)])
            row = stop


def _columns(table: pq.ParquetFile, fields: frozenset[str]) -> list[str]:
    """List the columns to decode; of pictures and the like, whose presence alone matters, the smallest part."""
    if not table.metadata.num_row_groups:
        return []
    group = table.metadata.row_group(0)
    parts = [group.column(i) for i in range(group.num_columns)]
    columns = []
    for name in table.schema_arrow.names:
        if name in MEDIA:
            own = [part for part in parts if part.path_in_schema.split(".")[0] == name]
            columns.append(min(own, key=lambda part: part.total_compressed_size).path_in_schema)
        elif name in fields:
            columns.append(name)
    return columns


def _explodes(group: Any) -> bool:
    """Whether a few rows of a row group may be more than memory holds: by its size on disk, or by a page of texts
    that any number of rows may share."""
    columns = [group.column(i) for i in range(group.num_columns)]
    pages = [c.data_page_offset - c.dictionary_page_offset for c in columns if c.has_dictionary_page]
    stored = sum(column.total_compressed_size for column in columns)
    return group.total_byte_size > MOST_RATIO * max(stored, 1) or max(pages, default=0) > MOST_DICTIONARY


def _texts(table: pq.ParquetFile) -> list[str]:
    """List paths of all columns of text, to be read as dictionaries: each text once, however many rows hold it."""
    schema = table.schema
    columns = [schema.column(i) for i in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


READER = FileReader(cut, read)
