"""Marks in the Arrow files of a packed set: whose a file is, and a checksum for each row of a shard.

The loader shares this with what writes the set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from packer_cli.format.arrays import to_numpy

CHECKSUM = "checksum"
"""Column of a shard: `row_checksums` of the others."""
IDENTITY = b"hbpack"
"""Key of a file's identity in the metadata of its Arrow schema: the set's fingerprint and the path in it, as JSON."""


def identify(schema: pa.Schema, fingerprint: str, path: str) -> pa.Schema:
    """The schema with the identity of the file: of which set it is, and where it stands there."""
    identity = json.dumps({"set": fingerprint, "path": path}).encode()
    return schema.with_metadata({**(schema.metadata or {}), IDENTITY: identity})


def find_foreign(schema: pa.Schema, fingerprint: str, path: str) -> str | None:
    """Whose a file is, in a few words, where it is another's; None where it is just the one that belongs there."""
    try:
        identity = json.loads((schema.metadata or {})[IDENTITY])
        found, where = identity["set"], identity["path"]
    except (KeyError, TypeError, ValueError):
        return "it does not say which set it belongs to"
    if found != fingerprint:
        return f"it belongs to another set, {found}, not to {fingerprint}"
    return None if where == path else f"it is a copy of {where}"


def row_checksums(batch: pa.RecordBatch) -> np.ndarray:
    """xxh3-64 (uint64 [rows]) of each row of a record batch of a shard, but for its column `checksum`.

    A row is its numbers, then the items of its lists, both in the order of the columns, little-endian, one after
    another. Price: one read of the batch, and about 2 us a row.
    """
    names = [field.name for field in batch.schema if field.name != CHECKSUM]
    of_lists = [name for name in names if pa.types.is_list(batch.schema.field(name).type)]
    arrays = {name: to_numpy(batch.column(name)) for name in names if name not in of_lists}
    packed = np.zeros(batch.num_rows, dtype=[(name, array.dtype.newbyteorder("<")) for name, array in arrays.items()])
    for name, array in arrays.items():
        packed[name] = array
    rows, size = packed.view(np.uint8).data, packed.dtype.itemsize
    columns = [_items(batch.column(name)) for name in of_lists]
    checksums = np.empty(batch.num_rows, dtype=np.uint64)
    for row in range(batch.num_rows):
        lists = [data[borders[row] : borders[row + 1]] for data, borders in columns]
        checksums[row] = row_checksum(rows[row * size : (row + 1) * size], lists)
    return checksums


def _items(column: pa.ListArray) -> tuple[memoryview, list[int]]:
    """The bytes of a list column's items, and where those of each row begin and end."""
    values = to_numpy(column.values)
    borders = to_numpy(column.offsets).astype(np.int64) * values.dtype.itemsize
    return values.view(np.uint8).data, borders.tolist()


def row_checksum(numbers: bytes | memoryview, lists: Iterable[Any]) -> int:
    """`row_checksums` of one row, as readers have it.

    Args:
        numbers: those of the row, as they lie in the file.
        lists: the items of its lists, anything contiguous with a buffer.
    """
    digest = xxhash.xxh3_64(numbers)
    for items in lists:
        digest.update(items)
    return digest.intdigest()
