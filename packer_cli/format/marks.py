"""Marks in the Arrow files of a packed set: whose a file is, and a checksum for each row of a shard.

The loader shares this with what writes the set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from packer_cli.format.arrays import Columns, Lists

CHECKSUM = "checksum"
"""Column of a shard: `row_checksums` of the other columns."""
IDENTITY = b"hbpack"
"""Key of a file's identity in the metadata of its Arrow schema: the set's fingerprint and the path in it, as JSON."""


def identify(schema: pa.Schema, fingerprint: str, path: str) -> pa.Schema:
    """Add the identity of the file to the schema: the set that it is of, and its place there."""
    identity = json.dumps({"set": fingerprint, "path": path}).encode()
    return schema.with_metadata({**(schema.metadata or {}), IDENTITY: identity})


def find_foreign(schema: pa.Schema, fingerprint: str, path: str) -> str | None:
    """Name the owner of a file, in a few words, where it is another's; return None where it is just the one that
    belongs there."""
    try:
        identity = json.loads((schema.metadata or {})[IDENTITY])
        found, where = identity["set"], identity["path"]
    except (KeyError, TypeError, ValueError):
        return "it does not say which set it belongs to"
    if found != fingerprint:
        return f"it belongs to another set, {found}, not to {fingerprint}"
    return None if where == path else f"it is a copy of {where}"


def row_checksums(columns: Columns) -> np.ndarray:
    """Compute the checksum (uint64 [rows]) of each row of a record batch of a shard. Price: one read, and some us a
    row."""
    num_rows = len(columns["num_tokens"])
    return np.array([row_checksum(columns, i) for i in range(num_rows)], dtype=np.uint64)


def row_checksum(columns: Columns, i: int, tokens: Sequence[np.ndarray] = ()) -> int:
    """Compute xxh3-64 of row `i` of a record batch of a shard, without its column `checksum`.

    A row is its numbers, then the items of its lists, both in the order of the columns, little-endian, one after
    another.

    Args:
        tokens: the lists that the row leaves elsewhere, which come first.
    """
    numbers: list[Any] = []
    lists: list[Any] = [*tokens]
    for name, column in columns.items():
        if isinstance(column, Lists):
            offset = column.offsets.item
            lists.append(column.values[offset(i) : offset(i + 1)])
        elif name != CHECKSUM:
            numbers.append(column[i : i + 1])
    digest = xxhash.xxh3_64(b"".join(numbers))
    for items in lists:
        digest.update(items)
    return digest.intdigest()
