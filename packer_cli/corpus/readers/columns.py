"""Arrow record batches to records, column by column.

Nested columns are flattened once and put together again, which is several times faster than a scalar at a
time. A struct gives None for every key that a row lacks; such keys are dropped, as transformers does,
all but `content`, whose null means something beside `tool_calls`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.readers.base import RawBatch
from packer_cli.corpus.types import Reject

if TYPE_CHECKING:
    import pyarrow as pa

KEEP_NULL = "content"


class _Unreadable:
    """Stands for a value that could not be turned into Python."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def raw_batch(batch: pa.RecordBatch, first_row: int, fields: frozenset[str]) -> RawBatch:
    """The rows of a record batch as records, numbered from `first_row`; only columns in `fields` are read."""
    names = [name for name in dict.fromkeys(batch.schema.names) if name in fields]
    if not names:
        # Nothing here can be a document: the keys alone give the reason.
        keys = dict.fromkeys(batch.schema.names)
        return RawBatch(records=[(first_row + i, keys) for i in range(batch.num_rows)])
    columns = [_column(batch.column(batch.schema.names.index(name)), name) for name in names]
    out = RawBatch()
    for row, values in enumerate(zip(*columns, strict=True), first_row):
        record = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        bad = next(((name, v) for name, v in record.items() if type(v) is _Unreadable), None)
        if bad is None:
            out.records.append((row, record))
        else:
            out.rejects.append(Reject(row, f'column "{bad[0]}" cannot be read: {bad[1].reason}'))
    return out


def _column(column: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    try:
        arrays = _integer_lists(column)
        return to_python(column) if arrays is None else arrays
    except (pa.ArrowException, ValueError, OverflowError, TypeError, NotImplementedError):
        return [_one_value(column.slice(row, 1)) for row in range(len(column))]


def _one_value(value: pa.Array) -> Any:
    import pyarrow as pa

    try:
        return to_python(value)[0]
    except UnicodeDecodeError as error:
        return _Unreadable(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}")
    except (pa.ArrowException, ValueError, OverflowError, TypeError, NotImplementedError) as error:
        return _Unreadable(" ".join(str(error).split()) or type(error).__name__)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _bounds(column: pa.Array) -> list[int]:
    """n+1 offsets into `column.flatten()`, whatever the slice or the nulls."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).tolist()


def _integer_lists(column: pa.Array) -> list[Any] | None:
    """Views of one numpy array for a column of integer or boolean lists without nulls inside, else None."""
    import pyarrow as pa

    if not _is_list(column.type):
        return None
    kind = column.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    values = column.flatten()
    if values.null_count:
        return None
    array = values.to_numpy(zero_copy_only=False)
    rows: list[Any] = [array[start:stop] for start, stop in pairwise(_bounds(column))]
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
    if pa.types.is_dictionary(kind):
        return to_python(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return to_python(column.storage)
    if _is_list(kind):
        values = to_python(column.flatten())
        return _with_nulls([values[start:stop] for start, stop in pairwise(_bounds(column))], column)
    if pa.types.is_struct(kind):
        return _with_nulls(_structs(column), column)
    if pa.types.is_nested(kind):
        return [_without_nulls(value) for value in column.to_pylist()]
    return column.to_pylist()


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
