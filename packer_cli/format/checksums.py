"""Proofs that a file is as it was written: checksums of files, of rows of shards and of JSON; and names that stay in a
set's folder.

Everything that reads a packed set shares this, the loader included. All checksums are XXH3: they find what disks and
networks do to files, and do not protect from an attacker, who can compute them too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from packer_cli.errors import MISSING
from packer_cli.format.ragged import Lists

if TYPE_CHECKING:
    from packer_cli.format.arrays import Columns

CHECKSUM = "checksum"
"""Column of a shard: `row_checksums` of the other columns."""
_BLOCK = 2**20
_TOO_LITTLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HEX = re.compile(r"[0-9a-f]{32}\Z")
_SIGNATURE = 32
_BEFORE, _AFTER = b'"xxh3": "', b'"\n}\n'


def file_checksum(path: Path, offset: int = 0, num_bytes: int | None = None) -> str:
    """Compute xxh3-128 (hex) of a file, or of `num_bytes` of it from `offset` on; read it once, at 2 to 10 GB/s."""
    digest = xxhash.xxh3_128()
    left = sys.maxsize if num_bytes is None else num_bytes
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while size := file.readinto(buffer[:left]):
            digest.update(buffer[:size])
            left -= size
    return digest.hexdigest()


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
        tokens: the lists that the row leaves elsewhere, which come last.
    """
    numbers: list[Any] = []
    lists: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, Lists):
            lists.append(column.row(i))
        elif name != CHECKSUM:
            numbers.append(column[i : i + 1])
    digest = xxhash.xxh3_64(b"".join(numbers))
    for items in (*lists, *tokens):
        digest.update(items)
    return digest.intdigest()


def require_damage(error: BaseException) -> None:
    """Raise an error again that says nothing about the file that was read, but that this process has too little."""
    if isinstance(error, OSError) and error.errno in _TOO_LITTLE:
        raise error


def check_bytes(data: Any, xxh3: str) -> str | None:
    """Name the fault of a file that was read, in a few words; return None where it has its checksum."""
    found = xxhash.xxh3_128_hexdigest(data)
    return None if found == xxh3 else f"its checksum is {found}, hbpack.json says {xxh3}"


def is_checksum(value: Any) -> bool:
    """Whether this is an xxh3-128 in hex, and so safe as a file name."""
    return isinstance(value, str) and _HEX.match(value) is not None


def find_damage(path: Path, num_bytes: int | None, xxh3: str, index: str = "hbpack.json") -> str | None:
    """Name the fault of a file, in a few words; return None where it is as it was written. Price: reading it once.

    Args:
        num_bytes: None where only the checksum is known.
        index: the file that tells these two.
    """
    try:
        size = path.stat().st_size
        if num_bytes not in (None, size):
            return f"{size} bytes, {index} says {num_bytes}"
        found = file_checksum(path)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        require_damage(error)
        return f"it cannot be read: {error.strerror}"
    return None if found == xxh3 else f"its checksum is {found}, {index} says {xxh3}"


def find_path_fault(path: str) -> str | None:
    """Say what is wrong with a path that is to name a file below a set's folder by plain names: it is absolute, climbs
    with `..`, or is no plain path."""
    is_plain = path and "\0" not in path and "\\" not in path and not {"", ".", ".."} & {*path.split("/")}
    return None if is_plain else "not a path inside the set's folder"


def inside(folder: Path, path: str) -> Path:
    """Return a file of the set in a folder.

    Raises:
        ValueError: its path, or a link on the way, leads out of the folder.
    """
    why, file = find_path_fault(path), folder / path
    if why is not None:
        raise ValueError(f"{path!r} is {why}")
    if not isinstance(file, Path):
        return file  # Remote storage has no links.
    # Not Path.resolve, which raises RuntimeError for links in a circle before Python 3.13.
    real = os.path.realpath(file)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{str(file)!r} is a link to {real!r}, outside the set's folder; copy the file")
    return file


JsonSchema = dict[str, Any]


def sign_json(value: Mapping[str, object]) -> bytes:
    """Write indented JSON that ends with `"xxh3"`, the checksum of every byte before its digits.

    >>> check_json(sign_json({"a": 1}))
    b'{\\n  "a": 1\\n}\\n'
    """
    return sign_text(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def sign_text(text: bytes) -> bytes:
    """Sign an object that is JSON already, with an indent of 2, as `sign_json` does."""
    body = text[: -len("\n}")] + b",\n  " + _BEFORE
    return body + _hex(body) + _AFTER


def check_json(data: bytes) -> bytes:
    """Return the JSON that was signed, without its `"xxh3"`.

    Raises:
        ValueError: it was not signed, or has been changed.
    """
    body, digits = data[: -_SIGNATURE - len(_AFTER)], data[-_SIGNATURE - len(_AFTER) : -len(_AFTER)]
    if not (data.endswith(_AFTER) and body.endswith(_BEFORE) and is_checksum(digits.decode("latin-1"))):
        raise ValueError("it does not end with its checksum, so an earlier release wrote it, or it was changed")
    if _hex(body) != digits:
        raise ValueError(f"its checksum is {_hex(body).decode()}, it says {digits.decode()}")
    return body[: -len(b",\n  " + _BEFORE)] + b"\n}\n"


def describe_signature(schema: JsonSchema) -> None:
    """Add what `sign_json` adds to the JSON Schema of what is signed."""
    description = "xxh3-128 of all bytes of the file before these digits; the last key"
    schema["properties"]["xxh3"] = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": description}
    schema["required"].append("xxh3")


def _hex(data: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(data).encode()
