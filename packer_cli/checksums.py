"""What says that a file is as it was written: checksums of files, of rows of shards, of JSON; and safe file names.

Everything that reads a packed set shares this, the loader included. All checksums are XXH3, which finds every change of
a single bit and, but for one in 2^64, any other that no one made on purpose. It does not protect from an attacker.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from packer_cli.arrays import to_numpy

CHECKSUM = "checksum"
"""Column of a shard: `row_checksums` of the others."""
IDENTITY = b"hbpack"
"""Key of a file's identity in the metadata of its Arrow schema: the set's fingerprint and the path in it, as JSON."""

_BLOCK = 2**20
_HEX = re.compile(r"[0-9a-f]{32}\Z")
_SIGNATURE = 32
_BEFORE, _AFTER = b'"xxh3": "', b'"\n}\n'


def file_checksum(path: str | Path) -> str:
    """xxh3-128 (hex) of a file's content; reads it once, at 2 to 10 GB/s."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


def is_checksum(value: Any) -> bool:
    """Whether this is an xxh3-128 in hex, and so safe as a file name."""
    return isinstance(value, str) and _HEX.match(value) is not None


def find_damage(path: str | Path, num_bytes: int | None, xxh3: str) -> str | None:
    """What is wrong with a file, in a few words; None where it is as it was written. Price: reading it once.

    Args:
        num_bytes: None where only the checksum is known.
    """
    try:
        size = Path(path).stat().st_size
        if num_bytes not in (None, size):
            return f"{size} bytes, hbpack.json says {num_bytes}"
        found = file_checksum(path)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None if found == xxh3 else f"its checksum is {found}, hbpack.json says {xxh3}"


def check_path(path: str) -> str:
    """The path itself, where it names a file below a set's folder by plain names.

    Raises:
        ValueError: it is absolute, climbs with `..`, or is no plain path.
    """
    if not path or "\0" in path or "\\" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"{path!r} is not a path inside the set's folder")
    return path


def inside(folder: Path, path: str) -> Path:
    """A file of the set in a folder.

    Raises:
        ValueError: its path, or a link on the way, leads out of the folder.
    """
    file = folder / check_path(path)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{str(file)!r} is a link to {str(file.resolve())!r}, outside the set's folder; copy the file")
    return file


def sign_json(value: dict[str, Any]) -> bytes:
    """Indented JSON that ends with `"xxh3"`, the checksum of every byte before its digits.

    >>> check_json(sign_json({"a": 1}))
    b'{\\n  "a": 1\\n}\\n'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass")
    body = text[: -len("\n}")] + b",\n  " + _BEFORE
    return body + _hex(body) + _AFTER


def check_json(data: bytes) -> bytes:
    """What was signed, without its `"xxh3"`.

    Raises:
        ValueError: it was not signed, or has been changed.
    """
    body, digits = data[: -_SIGNATURE - len(_AFTER)], data[-_SIGNATURE - len(_AFTER) : -len(_AFTER)]
    if not (data.endswith(_AFTER) and body.endswith(_BEFORE) and is_checksum(digits.decode("latin-1"))):
        raise ValueError("it does not end with its checksum, so an earlier release wrote it, or it was changed")
    if _hex(body) != digits:
        raise ValueError(f"its checksum is {_hex(body).decode()}, it says {digits.decode()}")
    return body[: -len(b",\n  " + _BEFORE)] + b"\n}\n"


def _hex(data: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(data).encode()


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
        return "it does not say of which set it is"
    if found != fingerprint:
        return f"it is of another set, {found}, and not of {fingerprint}"
    return None if where == path else f"it is a copy of {where}"


def row_checksums(batch: pa.RecordBatch) -> np.ndarray:
    """xxh3-64 (uint64 [rows]) of each row of a record batch of a shard, but for its column `checksum`.

    A row is its numbers, then the items of its lists, both in the order of the columns, little-endian, one after
    another. Price: one read of the batch, and about 2 us a row.
    """
    names = [field.name for field in batch.schema if field.name != CHECKSUM]
    lists = [name for name in names if pa.types.is_list(batch.schema.field(name).type)]
    arrays = {name: to_numpy(batch.column(name)) for name in names if name not in lists}
    packed = np.zeros(batch.num_rows, dtype=[(name, array.dtype.newbyteorder("<")) for name, array in arrays.items()])
    for name, array in arrays.items():
        packed[name] = array
    rows, size = memoryview(packed.view(np.uint8)), packed.dtype.itemsize
    columns = [_items(batch.column(name)) for name in lists]
    checksums = np.empty(batch.num_rows, dtype=np.uint64)
    for row in range(batch.num_rows):
        digest = xxhash.xxh3_64(rows[row * size : (row + 1) * size])
        for data, borders in columns:
            digest.update(data[borders[row] : borders[row + 1]])
        checksums[row] = digest.intdigest()
    return checksums


def _items(column: pa.ListArray) -> tuple[memoryview, list[int]]:
    """The bytes of a list column's items, and where those of each row begin and end."""
    values = to_numpy(column.values)
    borders = to_numpy(column.offsets).astype(np.int64) * values.dtype.itemsize
    return memoryview(values).cast("B") if len(values) else memoryview(b""), borders.tolist()


def row_checksum(numbers: Struct, values: tuple[Any, ...], lists: list[Any]) -> int:
    """`row_checksums` of one row, as the loader has it.

    Args:
        numbers: how its numbers lie, one after another.
        lists: the items of its lists, anything contiguous with a buffer.
    """
    digest = xxhash.xxh3_64(numbers.pack(*values))
    for items in lists:
        digest.update(items)
    return digest.intdigest()
