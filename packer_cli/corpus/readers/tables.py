"""Tables: Parquet, and Arrow IPC.

Parquet      a slice is consecutive row groups; only the columns that a record shape knows are decoded. Memory: one
             decoded batch and the compressed row group it comes from.
Arrow IPC    a file (Feather 2: record batches can be addressed), or a stream (one slice). Memory: the file is mapped;
             one batch is turned into Python at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.blocks import changed, open_source, opening, why_damaged
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


PARQUET_MAGIC = b"PAR1"


def _open_parquet(file: CorpusFile, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    with opening(file, PARQUET_MAGIC):
        # The column chunks of a URL are requested at once, not page by page.
        is_far = is_url(file.path)
        source = open_source(file) if is_far else file.path
        return pq.ParquetFile(source, read_dictionary=list(read_dictionary), pre_buffer=is_far)


def row_groups(file: CorpusFile) -> list[tuple[int, int]]:
    """Read the rows, and uncompressed bytes, of each row group of a Parquet file from its footer."""
    with _open_parquet(file) as table:
        groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]


def cut_parquet(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut row groups up to `slice_bytes` of uncompressed data by the footer, one at least."""
    sizes = row_groups(file)
    limit = slice_bytes or default_slice_bytes(sum(size for _, size in sizes))
    return _cut_units(file, sizes, limit)


def _cut_units(file: CorpusFile, sizes: list[tuple[int, int]], limit: int) -> list[CorpusSlice]:
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


def read_parquet(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the rows of the slice's row groups; one that breaks is lost from there on, the next ones are read."""
    from packer_cli.corpus.readers.columns import raw_batches

    row = slice_.first_line
    with ExitStack() as stack:
        table = stack.enter_context(_open_parquet(slice_.file))
        columns = _columns(table, fields)
        if slice_.stop > table.metadata.num_row_groups:
            raise changed(slice_.file.path)
        if any(_explodes(table.metadata.row_group(index)) for index in range(slice_.start, slice_.stop)):
            table = stack.enter_context(_open_parquet(slice_.file, _texts(table)))
        for index in range(slice_.start, slice_.stop):
            group = table.metadata.row_group(index)
            stop = row + group.num_rows
            rows = max(1, min(BATCH_ROWS, rules.batch_bytes * group.num_rows // max(group.total_byte_size, 1)))
            try:
                # Workers share the cores already, and handing rows to threads costs as much again as reading them.
                for part in table.iter_batches(rows, [index], columns or None, use_threads=False):
                    yield from raw_batches(part, row, rules, fields)
                    row += part.num_rows
            except Exception as error:
                reason = why_damaged(slice_.file.path, error)
                lost = f"row group {index} cannot be read ({reason}); its rows {row} to {stop - 1} are lost"
                stored = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
                yield RawBatch(rejects=[Gap(row, lost)], lost=stored * (stop - row) // max(group.num_rows, 1))
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


PARQUET = FileReader(cut_parquet, read_parquet)


FILE_MAGIC = b"ARROW1"


@contextmanager
def _open_arrow(file: CorpusFile, first_field_only: bool = False) -> Iterator[tuple[Any, bool]]:
    """Open (reader, whether it is an IPC file).

    Raises:
        InputError: it is neither file nor stream; a DamagedFileError where it begins as a file.
    """
    import pyarrow as pa

    with open_source(file) as source:
        with opening(file, FILE_MAGIC, "not an Arrow IPC file or stream"):
            is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
            source.seek(0)
            # One field is enough to count rows, and saves decompressing the others.
            options = pa.ipc.IpcReadOptions(included_fields=[0] if first_field_only else [])
            open_ipc = pa.ipc.open_file if is_file else pa.ipc.open_stream
            reader = open_ipc(source, options=options)
        with reader:
            yield reader, is_file


def cut_arrow(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut record batches up to `slice_bytes` by their share of rows; a stream is one slice, 0..1."""
    from packer_cli.format.shards import find_blocks

    with _open_arrow(file, first_field_only=True) as (reader, is_file):
        rows: list[int] = []
        if is_file:
            with opening(file, FILE_MAGIC):
                rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    if not is_file:
        return [CorpusSlice(file=file, start=0, stop=1, span=(0, file.num_bytes))]
    total = max(sum(rows), 1)
    sizes = [(count, file.num_bytes * count // total) for count in rows]
    slices = _cut_units(file, sizes, slice_bytes or default_slice_bytes(file.num_bytes))
    places = [file.num_bytes] * (len(rows) + 1)
    if rows and not is_url(file.path):
        with open_source(file) as source:
            blocks = find_blocks(memoryview(source.read_buffer()))  # The file is mapped.
        places = [*(begin for begin, _, _ in blocks), sum(blocks[-1])]
    return [each._replace(span=(places[each.start], places[each.stop])) for each in slices]


def read_arrow(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the rows of the slice; where it is damaged, what follows is lost and one reject says so."""
    from packer_cli.corpus.readers.columns import raw_batches

    row = slice_.first_line
    with _open_arrow(slice_.file) as (reader, is_file):
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
            gap = Gap(row, f"record batch {number} cannot be read ({reason}); {rest}")
            first, last = slice_.span or (0, slice_.file.num_bytes)
            share = (slice_.stop - number) / (slice_.stop - slice_.start) if is_file else 0
            yield RawBatch(rejects=[gap], lost=int((last - first) * share))


ARROW = FileReader(cut_arrow, read_arrow)
