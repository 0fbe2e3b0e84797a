"""Arrow record batches to records, column by column.

A struct gives None for every key that a row lacks; such keys are dropped, as transformers does, all but `content` of a
message, whose null means something beside `tool_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.corpus.readers.base import RawBatch, ReadRules
from packer_cli.corpus.records import token_rows, unused
from packer_cli.corpus.records.base import read_json
from packer_cli.corpus.records.weights import WEIGHTS
from packer_cli.corpus.types import Reject, TokenRows
from packer_cli.format.arrays import Lists

TOKENS_BYTES = 4 << 20
"""Bytes a batch of tokenized rows: they become no Python objects."""
KEYS_ROWS = 10_000
"""Rows a batch where no column can be a document."""


def raw_batches(whole: pa.RecordBatch, first_row: int, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Yield a record batch's rows as records, numbered from `first_row`, about `rules.batch_bytes` at a time.

    Only columns in `fields` are looked at. All of them are validated first, as what comes from a damaged file may
    point anywhere. Rows of more than `rules.max_record_bytes` are rejected before they become Python objects.

    Raises whatever pyarrow raises for columns that are damaged: nothing of them can be used.
    """
    names = [name for name in dict.fromkeys(whole.schema.names) if name in fields]
    if unused.NO_SHAPE.issuperset(names):
        # Nothing here can be a document: the keys alone give the reason.
        keys = dict.fromkeys(whole.schema.names)
        for start in range(0, whole.num_rows, KEYS_ROWS):
            rows = range(start, min(start + KEYS_ROWS, whole.num_rows))
            yield RawBatch(records=[(first_row + i, keys) for i in rows])
        return
    columns = [whole.column(whole.schema.names.index(name)) for name in names]
    check_columns(columns)
    about = (whole.schema.metadata or {}).get(b"huggingface", b"")
    if b'"Json"' in about:
        known = json.loads(about).get("info", {}).get("features") or {}
        pairs = zip(columns, map(known.get, names), strict=True)
        columns = [column.view(_retyped(column.type, _as_json, feature)) for column, feature in pairs]
    taken = [column for name, column in zip(names, columns, strict=True) if name not in unused.MEDIA]
    sizes = np.sum([_sums(column, _leaf_bytes) for column in taken], axis=0)
    lists_of = {} if rules.keep else _token_columns(columns, names)
    if lists_of and sizes.max(initial=0) <= rules.max_record_bytes:
        tokenized = TokenRows(np.arange(first_row, first_row + whole.num_rows), lists_of)
        for start, stop in _cuts(sizes, replace(rules, batch_bytes=max(rules.batch_bytes, TOKENS_BYTES))):
            yield RawBatch(tokens=tokenized.part(start, stop))
        return
    for start, stop in _cuts(sizes, rules):
        if stop == start + 1 and sizes[start] > rules.max_record_bytes:
            yield RawBatch(rejects=[Reject(first_row + start, rules.too_long())])
            continue
        parts = [column.slice(start, stop - start) for column in columns]
        yield _records(parts, names, first_row + start)


def _token_columns(columns: list[pa.Array], names: list[str]) -> dict[str, Lists]:
    """Return the columns of tokenized records; none where rows are other records, or some need a look one by one."""
    if token_rows.IDS not in names or not {*WEIGHTS}.isdisjoint(names):
        return {}
    lists: dict[str, Lists] = {}
    for name, column in zip(names, columns, strict=True):
        if name in token_rows.COLUMNS:
            values = None if column.null_count else integers(column)
            if values is None or (values.dtype == np.bool_ and name in token_rows.NO_BOOLEANS):
                return {}
            lists[name] = Lists(np.asarray(bounds(column)), values)
        elif name in unused.MEDIA and is_present(column).any():
            return {}
    return lists


def _cuts(sizes: NDArray[np.int64], rules: ReadRules) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about `batch_bytes`; a row that is too long has one to itself."""
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
    out = RawBatch()
    values: list[list[Any]] = []
    for name, column in zip(names, columns, strict=True):
        try:
            values.append(_values(name, column))
        except (ValueError, OverflowError) as error:
            if len(column) == 1:
                return RawBatch(rejects=[Reject(first_row, f'column "{name}" cannot be read: {_why(error)}')])
            for row in range(len(column)):  # What cannot be read is a fault of its row alone.
                one = _records([each.slice(row, 1) for each in columns], names, first_row + row)
                out.records += one.records
                out.rejects += one.rejects
            return out
    for row, row_values in enumerate(zip(*values, strict=True), first_row):
        record = {name: value for name, value in zip(names, row_values, strict=True) if value is not None}
        out.records.append((row, record))
    return out


def _values(name: str, column: pa.Array) -> list[Any]:
    """Convert as `to_python`, with views for lists of integers; of media, True for each that is present."""
    if name in unused.MEDIA:
        return [present or None for present in is_present(column).tolist()]
    values = integers(column)
    if values is None:
        return to_python(column)
    rows = [values[start:stop] for start, stop in pairwise(bounds(column).tolist())]
    return [row if is_there else None for row, is_there in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _why(error: Exception) -> str:
    """Say why a value cannot be read: text that is no UTF-8, no JSON, a time out of Python's range or in no known
    zone."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
    return " ".join(str(error).split()) or type(error).__name__


def check_columns(columns: list[pa.Array]) -> None:
    """Raise unless every offset, index and length in the columns is within what it points into.

    Text is checked as bytes: that one of them is not UTF-8 is a fault of its row alone. Price: about 5 GB/s. What is
    raised may be a SystemError: pyarrow has no words for some kinds of damage.
    """
    for column in columns:
        column.validate()
        column.view(_retyped(column.type, _as_bytes)).validate(full=True)


def _retyped(kind: pa.DataType, change: Callable[[pa.DataType, Any], pa.DataType], feature: Any = None) -> pa.DataType:
    """Replace types that hold no others, at any depth; the new type is laid out in the same way.

    Args:
        feature: what `datasets` says of it.
    """
    if pa.types.is_struct(kind):
        known = feature if isinstance(feature, dict) else {}
        return pa.struct([field.with_type(_retyped(field.type, change, known.get(field.name))) for field in kind])
    inner = feature[0] if isinstance(feature, list) else isinstance(feature, dict) and feature.get("feature")
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        item = kind.value_field.with_type(_retyped(kind.value_type, change, inner))
        is_large = isinstance(kind, pa.LargeListType)
        return pa.large_list(item) if is_large else pa.list_(item, getattr(kind, "list_size", -1))
    return change(kind, feature)


def _as_bytes(kind: pa.DataType, _: Any) -> pa.DataType:
    """Replace text by binary."""
    return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, kind)


def _as_json(kind: pa.DataType, feature: Any) -> pa.DataType:
    """Replace the text of a `Json` feature, which may lack the extension type, by `arrow.json`."""
    is_json = isinstance(feature, dict) and feature.get("_type") == "Json" and pa.types.is_string(kind)
    return pa.json_() if is_json else kind


KEEP_NULL = "content"
"""Columns whose structs, or lists of such, have a `role`."""


def _sums(column: pa.Array, of_leaf: Callable[[pa.Array], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Sum up, for each value of a validated column (int64[n]), numbers of what its lists hold.

    Args:
        of_leaf: the numbers of a column without lists.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _sums(column.storage, of_leaf)
    if pa.types.is_dictionary(kind):
        of_entries = np.append(_sums(column.dictionary, of_leaf), 0)
        indices = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        found: NDArray[np.int64] = of_entries[indices]
        return found
    if _is_list(kind):
        ends = np.append(0, np.cumsum(_sums(column.flatten(), of_leaf), dtype=np.int64))
        return np.diff(ends[bounds(column)])
    return of_leaf(column)


def is_present(column: pa.Array) -> NDArray[np.bool_]:
    """Mark values (bool[n]) of a validated column neither null, nor empty text or lists, nor lists of these."""
    return _sums(column, _leaf_presence) > 0


def _leaf_bytes(column: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_struct(column.type):
        parts = (_sums(part, _leaf_bytes) for part in column.flatten())
        return sum(parts, np.zeros(len(column), dtype=np.int64))
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


def to_python(column: pa.Array) -> list[Any]:
    """Convert as `to_pylist`, without structs' null keys, with JSON and maps decoded."""
    read, values = _reader(column.type), column.to_pylist()
    return values if read is None else [each if each is None else read(each) for each in values]


def _reader(kind: pa.DataType, *, is_message: bool = True) -> Callable[[Any], Any] | None:
    """Make what turns values that `to_pylist` gives, but null, into those of records; None: they are.

    Args:
        is_message: whether structs with a `role`, of this type or in lists, are messages.
    """
    if isinstance(kind, pa.JsonType):
        return read_json
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _reader(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _reader(kind.storage_type)
    if pa.types.is_map(kind):
        read = _reader(kind.item_type, is_message=False)
        return lambda pairs: {key: read(item) if read else item for key, item in pairs if item is not None}
    if hasattr(kind, "value_type"):  # Any kind of list.
        read = _reader(kind.value_type, is_message=is_message)
        return read and (lambda values: [each if each is None else read(each) for each in values])
    if not pa.types.is_struct(kind):
        return None
    readers = [(field.name, read) for field in kind if (read := _reader(field.type, is_message=False))]
    kept = KEEP_NULL if is_message and kind.get_field_index("role") >= 0 else None

    def read_struct(value: dict[str, Any]) -> dict[str, Any]:
        found = {name: each for name, each in value.items() if each is not None or name == kept}
        for name, read in readers:
            if found.get(name) is not None:
                found[name] = read(found[name])
        return found

    return read_struct
