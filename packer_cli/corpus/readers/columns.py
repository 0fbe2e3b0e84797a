"""Arrow record batches to records, column by column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.corpus.readers.base import RawBatch, ReadRules
from packer_cli.corpus.readers.values import Unreadable, bounds, column_values, integers, is_present, value_bytes
from packer_cli.corpus.records import tokens, unused
from packer_cli.corpus.records.weights import WEIGHTS
from packer_cli.corpus.types import Reject, TokenRows
from packer_cli.format.arrays import Lists

TOKENS_BYTES = 4 << 20
"""Bytes a batch of tokenized rows: they become no Python objects."""
KEYS_ROWS = 10_000
"""Rows a batch where no column can be a document."""


class DamagedError(Exception):
    """A file holds columns that cannot be used; never leaves this package."""


def raw_batches(whole: pa.RecordBatch, first_row: int, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Yield a record batch's rows as records, numbered from `first_row`, about `rules.batch_bytes` at a time.

    Only columns in `fields` are looked at. All of them are validated first, as what comes from a damaged file may
    point anywhere. Rows of more than `rules.max_record_bytes` are rejected before they become Python objects.

    Raises:
        DamagedError: the columns are damaged; nothing of them can be used.
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
    sizes = np.sum([value_bytes(column) for column in taken], axis=0)
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
    """Return the columns of tokenized records; none where rows are other records, or some need a look one by one."""
    if tokens.IDS not in names or not {*WEIGHTS}.isdisjoint(names):
        return {}
    lists: dict[str, Lists] = {}
    for name, column in zip(names, columns, strict=True):
        if name in tokens.COLUMNS:
            values = None if column.null_count else integers(column)
            if values is None or (values.dtype == np.bool_ and name in tokens.NO_BOOLEANS):
                return {}
            lists[name] = Lists(np.asarray(bounds(column)), values)
        elif name in unused.MEDIA and is_present(column).any():
            return {}
    return lists


def _part(lists: Lists, start: int, stop: int) -> Lists:
    first, last = lists.offsets[start], lists.offsets[stop]
    return Lists(lists.offsets[start : stop + 1] - first, lists.values[first:last])


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
    values = [  # Of media nobody needs the value: True for each that is present.
        [present or None for present in is_present(column).tolist()] if name in unused.MEDIA else column_values(column)
        for name, column in zip(names, columns, strict=True)
    ]
    out = RawBatch()
    for row, row_values in enumerate(zip(*values, strict=True), first_row):
        record = {name: value for name, value in zip(names, row_values, strict=True) if value is not None}
        bad = next(((name, v) for name, v in record.items() if type(v) is Unreadable), None)
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
            column.view(_retyped(column.type, _as_bytes)).validate(full=True)
        except Exception as error:  # Among them SystemError: pyarrow has no words for some kinds of damage.
            raise DamagedError(" ".join(str(error).split()) or type(error).__name__) from error


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
