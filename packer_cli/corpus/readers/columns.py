"""Arrow record batches to records, column by column.

Nested columns are flattened once and put together again, which is several times faster than a scalar at a
time. A struct gives None for every key that a row lacks; such keys are dropped, as transformers does,
all but `content`, whose null means something beside `tool_calls`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.readers.base import RawBatch, ReadRules
from packer_cli.corpus.records import tokens
from packer_cli.corpus.types import Lists, Reject, TokenRows

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

KEEP_NULL = "content"
TOKENS_BYTES = 4 << 20
"""Bytes a batch of tokenized rows: they become no Python objects."""
KEYS_ROWS = 10_000
"""Rows a batch where no column can be a document."""


class DamagedError(Exception):
    """A file holds columns that cannot be used; never leaves this package."""


class _Unreadable:
    """Stands for a value that could not be turned into Python."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def raw_batches(whole: pa.RecordBatch, first_row: int, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """The rows of a record batch as records, numbered from `first_row`, about `rules.batch_bytes` at a time.

    Only columns in `fields` are looked at. All of them are validated first, as what comes from a damaged file may
    point anywhere. Rows of more than `rules.max_record_bytes` are rejected before they become Python objects.

    Raises:
        DamagedError: the columns are damaged; nothing of them can be used.
    """
    import numpy as np

    names = [name for name in dict.fromkeys(whole.schema.names) if name in fields]
    if not names:
        # Nothing here can be a document: the keys alone give the reason.
        keys = dict.fromkeys(whole.schema.names)
        for start in range(0, whole.num_rows, KEYS_ROWS):
            rows = range(start, min(start + KEYS_ROWS, whole.num_rows))
            yield RawBatch(records=[(first_row + i, keys) for i in rows])
        return
    columns = [whole.column(whole.schema.names.index(name)) for name in names]
    check_columns(columns)
    sizes = np.sum([value_bytes(column) for column in columns], axis=0)
    lists_of = _token_columns(columns, names)
    if lists_of and sizes.max(initial=0) <= rules.max_record_bytes:
        for start, stop in _cuts(sizes, replace(rules, batch_bytes=max(rules.batch_bytes, TOKENS_BYTES))):
            lines = np.arange(first_row + start, first_row + stop)
            yield RawBatch(
                tokens=TokenRows(lines, {name: _part(lists, start, stop) for name, lists in lists_of.items()})
            )
        return
    for start, stop in _cuts(sizes, rules):
        if stop == start + 1 and sizes[start] > rules.max_record_bytes:
            yield RawBatch(rejects=[Reject(first_row + start, rules.too_long())])
            continue
        parts = [column.slice(start, stop - start) for column in columns]
        yield _records(parts, names, first_row + start)


def _token_columns(columns: list[pa.Array], names: list[str]) -> dict[str, Lists]:
    """The columns of tokenized records; none where the rows are other records, or some need a look one by one."""
    import numpy as np

    if tokens.IDS not in names:
        return {}
    lists: dict[str, Lists] = {}
    for name, column in zip(names, columns, strict=True):
        if name in tokens.COLUMNS:
            values = None if column.null_count else _integers(column)
            if values is None or (values.dtype == np.bool_ and name in tokens.NO_BOOLEANS):
                return {}
            lists[name] = Lists(np.asarray(_bounds(column)), values)
    return lists


def _part(lists: Lists, start: int, stop: int) -> Lists:
    first, last = lists.offsets[start], lists.offsets[stop]
    return Lists(lists.offsets[start : stop + 1] - first, lists.values[first:last])


def _cuts(sizes: NDArray[np.int64], rules: ReadRules) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about `batch_bytes`; a row that is too long has one to itself."""
    start, held = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if row > start and (held >= rules.batch_bytes or size > rules.max_record_bytes):
            yield start, row
            start, held = row, 0
        held += size
        if size > rules.max_record_bytes:
            yield row, row + 1
            start, held = row + 1, 0
    if start < len(sizes):
        yield start, len(sizes)


def _records(columns: list[pa.Array], names: list[str], first_row: int) -> RawBatch:
    values = [_column(column) for column in columns]
    out = RawBatch()
    for row, row_values in enumerate(zip(*values, strict=True), first_row):
        record = {name: value for name, value in zip(names, row_values, strict=True) if value is not None}
        bad = next(((name, v) for name, v in record.items() if type(v) is _Unreadable), None)
        if bad is None:
            out.records.append((row, record))
        else:
            out.rejects.append(Reject(row, f'column "{bad[0]}" cannot be read: {bad[1].reason}'))
    return out


def check_columns(columns: list[pa.Array]) -> None:
    """Whether every offset, index and length in the columns is within what it points into.

    Text is checked as bytes: that one of them is not UTF-8 is a fault of its row alone. Price: about 5 GB/s.

    Raises:
        DamagedError: it is not.
    """
    for column in columns:
        try:
            column.validate()
            column.view(_as_bytes(column.type)).validate(full=True)
        except Exception as error:  # Among them SystemError: pyarrow has no words for some kinds of damage.
            raise DamagedError(" ".join(str(error).split()) or type(error).__name__) from error


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with binary in place of text, at any depth; laid out in the same way."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_as_bytes(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    return kind


def value_bytes(column: pa.Array) -> NDArray[np.int64]:
    """Bytes (int64[n]) that each value of a validated column takes on its own: text as long as it is, in whichever
    encoding it is stored."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return value_bytes(column.storage)
    if pa.types.is_dictionary(kind):
        of_entries = np.append(value_bytes(column.dictionary), 0)
        return of_entries[pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if _is_list(kind):
        ends = np.concatenate(([0], np.cumsum(value_bytes(column.flatten()))))
        bounds = _bounds(column)
        return ends[bounds[1:]] - ends[bounds[:-1]]
    if pa.types.is_struct(kind):
        return sum((value_bytes(part) for part in column.flatten()), np.zeros(len(column), dtype=np.int64))
    return np.full(len(column), column.nbytes // max(len(column), 1), dtype=np.int64)


def _is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _column(column: pa.Array) -> list[Any]:
    try:
        arrays = _integer_lists(column)
        return to_python(column) if arrays is None else arrays
    except (ValueError, OverflowError):
        return [_one_value(column.slice(row, 1)) for row in range(len(column))]


def _one_value(value: pa.Array) -> Any:
    try:
        return to_python(value)[0]
    except UnicodeDecodeError as error:
        return _Unreadable(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}")
    except (ValueError, OverflowError) as error:  # A time out of Python's range, or in no known zone.
        return _Unreadable(" ".join(str(error).split()) or type(error).__name__)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _bounds(column: pa.Array) -> NDArray[np.int64]:
    """int64[n+1]: offsets into `column.flatten()`, whatever the slice or the nulls."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _integers(column: pa.Array) -> NDArray[Any] | None:
    """All values of a column of integer or boolean lists without nulls inside, else None."""
    import pyarrow as pa

    if not _is_list(column.type):
        return None
    kind = column.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    values = column.flatten()
    return None if values.null_count else values.to_numpy(zero_copy_only=False)


def _integer_lists(column: pa.Array) -> list[Any] | None:
    """A view of each list of a column that `_integers` takes, else None."""
    array = _integers(column)
    if array is None:
        return None
    rows: list[Any] = [array[start:stop] for start, stop in pairwise(_bounds(column).tolist())]
    return _with_nulls(rows, column)


def _with_nulls(rows: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return rows
    valid = column.is_valid().to_pylist()
    return [row if ok else None for row, ok in zip(rows, valid, strict=True)]


def to_python(column: pa.Array) -> list[Any]:
    """Like `to_pylist`, but fast for nested columns and without the null keys of structs."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):  # Rows share the entries, which decoding would copy for each.
        used = column.indices.unique().drop_null()
        entries = dict(zip(used.to_pylist(), _entries(column.dictionary, used), strict=True))
        return [entries.get(index) for index in column.indices.to_pylist()]
    if isinstance(kind, pa.BaseExtensionType):
        return to_python(column.storage)
    if _is_list(kind):
        values = to_python(column.flatten())
        return _with_nulls([values[start:stop] for start, stop in pairwise(_bounds(column).tolist())], column)
    if pa.types.is_struct(kind):
        return _with_nulls(_structs(column), column)
    if pa.types.is_nested(kind):
        return [_without_nulls(value) for value in column.to_pylist()]
    return column.to_pylist()


def _entries(dictionary: pa.Array, used: pa.Array) -> list[Any]:
    import pyarrow as pa

    try:
        return to_python(dictionary.take(used))
    except pa.ArrowNotImplementedError:  # For string views, among others.
        return [to_python(dictionary.slice(place, 1))[0] for place in used.to_pylist()]


def _structs(column: pa.Array) -> list[dict[str, Any]]:
    names = [entry.name for entry in column.type]
    parts = column.flatten()
    fields = [to_python(part) for part in parts]
    if not names:
        return [{} for _ in range(len(column))]
    if any(part.null_count and name != KEEP_NULL for name, part in zip(names, parts, strict=True)):
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None or name == KEEP_NULL}
            for row in zip(*fields, strict=True)
        ]
    return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None or k == KEEP_NULL}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
