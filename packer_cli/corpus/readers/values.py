"""Arrow columns as Python values, and what they hold.

Nested columns are flattened once and put together again, which is several times faster than a scalar at a
time. A struct gives None for every key that a row lacks; such keys are dropped, as transformers does,
all but `content` of a message, whose null means something beside `tool_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.corpus.records.base import read_json

KEEP_NULL = "content"
"""Columns whose structs, or lists of such, have a `role`."""


class Unreadable:
    """Stands for a value that could not be turned into Python."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _sums(
    column: pa.Array, of_leaf: Callable[[pa.Array], NDArray[np.int64]], *, of_structs: bool
) -> NDArray[np.int64]:
    """Sum up, for each value of a validated column (int64[n]), numbers of what its lists hold.

    Args:
        of_leaf: the numbers of a column without lists.
        of_structs: whether a struct's number is the sum of its fields', and not `of_leaf`'s.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _sums(column.storage, of_leaf, of_structs=of_structs)
    if pa.types.is_dictionary(kind):
        of_entries = np.append(_sums(column.dictionary, of_leaf, of_structs=of_structs), 0)
        indices = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        found: NDArray[np.int64] = of_entries[indices]
        return found
    if _is_list(kind):
        ends = np.append(0, np.cumsum(_sums(column.flatten(), of_leaf, of_structs=of_structs), dtype=np.int64))
        return np.diff(ends[bounds(column)])
    if of_structs and pa.types.is_struct(kind):
        parts = (_sums(part, of_leaf, of_structs=True) for part in column.flatten())
        return sum(parts, np.zeros(len(column), dtype=np.int64))
    return of_leaf(column)


def value_bytes(column: pa.Array) -> NDArray[np.int64]:
    """Count bytes (int64[n]) that each value of a validated column takes on its own.

    Text is as long as it is, in whichever encoding it is stored.
    """
    return _sums(column, _leaf_bytes, of_structs=True)


def is_present(column: pa.Array) -> NDArray[np.bool_]:
    """Mark values (bool[n]) of a validated column neither null, nor empty text or lists, nor lists of these."""
    present: NDArray[np.bool_] = _sums(column, _leaf_presence, of_structs=False) > 0
    return present


def _leaf_bytes(column: pa.Array) -> NDArray[np.int64]:
    if _is_text(column.type):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        found: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return found
    return np.full(len(column), column.nbytes // max(len(column), 1), dtype=np.int64)


def _leaf_presence(column: pa.Array) -> NDArray[np.int64]:
    if _is_text(column.type):
        return _leaf_bytes(column)
    present: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return present.astype(np.int64)


def _is_text(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def bounds(column: pa.Array) -> NDArray[np.int64]:
    """Return offsets (int64[n+1]) into `column.flatten()`, whatever the slice or the nulls."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def integers(column: pa.Array) -> NDArray[Any] | None:
    """Return all values of a column of integer or boolean lists without nulls inside, else None."""
    if not _is_list(column.type):
        return None
    kind = column.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    values = column.flatten()
    return None if values.null_count else values.to_numpy(zero_copy_only=False)


def column_values(column: pa.Array) -> list[Any]:
    """Convert as `to_python`, with views for lists of integers, and `Unreadable` for values that fail."""
    try:
        array = integers(column)
        return to_python(column) if array is None else _lists(array, column)
    except (ValueError, OverflowError):
        return [_one_value(column.slice(row, 1)) for row in range(len(column))]


def _one_value(value: pa.Array) -> Any:
    try:
        return to_python(value)[0]
    except UnicodeDecodeError as error:
        return Unreadable(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}")
    except (ValueError, OverflowError) as error:  # A time out of Python's range, or in no known zone; no JSON.
        return Unreadable(" ".join(str(error).split()) or type(error).__name__)


def _lists(values: Any, column: pa.Array) -> list[Any]:
    """Cut the lists of a column from all of their values."""
    return _with_nulls([values[start:stop] for start, stop in pairwise(bounds(column).tolist())], column)


def _with_nulls(rows: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return rows
    valid = column.is_valid().to_pylist()
    return [row if ok else None for row, ok in zip(rows, valid, strict=True)]


def to_python(column: pa.Array, *, are_messages: bool = True) -> list[Any]:
    """Convert as `to_pylist`, but fast for nested columns, without structs' null keys, with JSON and maps decoded.

    Args:
        are_messages: whether structs with a `role`, here or in lists, are messages.
    """
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return [None if text is None else read_json(text) for text in to_python(column.storage)]
    if pa.types.is_map(kind):
        key, item = kind.key_field.name, kind.item_field.name
        maps = to_python(column.view(pa.list_(pa.struct([kind.key_field, kind.item_field]))), are_messages=False)
        return [pairs and {pair[key]: pair[item] for pair in pairs if item in pair} for pairs in maps]
    if pa.types.is_dictionary(kind):  # Rows share the entries, which decoding would copy for each.
        used = column.indices.unique().drop_null()
        entries = dict(zip(used.to_pylist(), _entries(column.dictionary, used), strict=True))
        return [entries.get(index) for index in column.indices.to_pylist()]
    if isinstance(kind, pa.BaseExtensionType):
        return to_python(column.storage)
    if _is_list(kind):
        return _lists(to_python(column.flatten(), are_messages=are_messages), column)
    if pa.types.is_struct(kind):
        return _with_nulls(_structs(column, are_messages), column)
    if pa.types.is_nested(kind):
        return [_without_nulls(value) for value in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _entries(dictionary: pa.Array, used: pa.Array) -> list[Any]:
    try:
        return to_python(dictionary.take(used))
    except pa.ArrowNotImplementedError:  # For string views, among others.
        return [to_python(dictionary.slice(place, 1))[0] for place in used.to_pylist()]


def _structs(column: pa.Array, are_messages: bool) -> list[dict[str, Any]]:
    names = [entry.name for entry in column.type]
    kept = KEEP_NULL if are_messages and "role" in names else None
    parts = column.flatten()
    fields = [to_python(part, are_messages=False) for part in parts]
    if not names:
        return [{} for _ in range(len(column))]
    if any(part.null_count and name != kept for name, part in zip(names, parts, strict=True)):
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None or name == kept}
            for row in zip(*fields, strict=True)
        ]
    return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
