"""Opens a shard to gather packs from: checks it, and finds where its columns are."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.arrays import dtype_of
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.entries import ShardInfo
from packer_cli.format.ipc import first_buffers
from packer_cli.format.loss_spans import STARTS
from packer_cli.format.schema import shard_schema
from packer_cli.format.shards import ShardFile
from packer_cli.remote.local import local_file, map_file

Int64Array = NDArray[np.int64]

_SCHEMA = shard_schema(pa.int32(), is_weighted=True)

LISTS = {field.name: dtype_of(field.type.value_type) for field in _SCHEMA if pa.types.is_list(field.type)}
"""List columns of a shard and the dtypes in which they are read; shards may hold narrower ids."""

NUMBERS = {field.name: dtype_of(field.type) for field in _SCHEMA if not pa.types.is_list(field.type)}


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard of r packs in b record batches."""

    path: Path
    info: ShardInfo
    values: dict[str, Int64Array]
    """Column -> int64[b]: byte in the file where its values begin in each record batch."""
    offsets: dict[str, Int64Array]
    """List column -> int64[b]: byte in the file where its offsets begin in each record batch."""
    num_tokens: NDArray[np.int32]
    """int32[r]"""
    num_samples: NDArray[np.int32]
    """int32[r]"""
    num_spans: NDArray[np.int32]
    """int32[r]: loss spans"""


def damaged(path: Path, why: str) -> FormatError:
    """The error for a damaged shard."""
    return FormatError(f"shard {str(path)!r} is damaged or incomplete ({why}); run hbpack write again")


def map_shard(path: Path, info: ShardInfo) -> NDArray[np.uint8]:
    """A shard: uint8[bytes], read-only."""
    return np.frombuffer(_buffer(path, info), dtype=np.uint8)


def _buffer(path: Path, info: ShardInfo) -> pa.Buffer:
    with map_file(path, info.num_bytes, info.xxh3) as source:
        return source.read_buffer()


def open_shard(folder: Path, info: ShardInfo, schema: pa.Schema, *, checks: bool) -> Shard:
    """Check a shard, and find its buffers.

    Args:
        schema: of all shards of the set.
        checks: whether to compare its checksum.

    Raises:
        FormatError: it is missing or damaged.
    """
    lists, buffers = _buffers(schema)
    path = folder / info.path
    try:
        inside(folder, info.path)
        # Of a remote shard the copy that is mapped.
        copy = local_file(path, info.num_bytes, info.xxh3)
        why = find_damage(copy, info.num_bytes, info.xxh3) if checks else None
        if why is not None:
            raise ValueError(why)
        buffer = _buffer(path, info)
        file = ShardFile(pa.BufferReader(buffer), tuple(lists))
        if not file.schema.equals(schema):
            raise ValueError("it has other columns")
        found = [file.starts(number, buffers) for number in range(file.num_batches)]
    except (OSError, ValueError, IndexError, struct.error, pa.ArrowException, FormatError) as error:
        require_damage(error)
        raise damaged(path, str(error)) from None
    rows, *starts = np.array(found, dtype=np.int64).reshape(-1, 1 + len(buffers)).T
    if rows.sum() != info.num_packs or (rows[:-1] != PACKS_PER_BATCH).any():
        raise damaged(path, f"its record batches do not hold {info.num_packs} packs, {PACKS_PER_BATCH} each")
    values = dict(zip((*lists, *NUMBERS), starts, strict=False))
    offsets = dict(zip(lists, starts[len(values) :], strict=True))
    data = np.frombuffer(buffer, dtype=np.uint8)
    numbers = data[: len(data) // 4 * 4].view(np.int32)
    place = np.repeat(offsets["cu_seqlens"] // 4, rows) + _within(rows)
    num_spans = np.zeros(info.num_packs, dtype=np.int32)
    if STARTS in offsets:
        place_of_spans = np.repeat(offsets[STARTS] // 4, rows) + _within(rows)
        num_spans = numbers[place_of_spans + 1] - numbers[place_of_spans]
    tokens = np.empty(info.num_packs, dtype=np.int32)
    size = np.full(info.num_packs, 4, dtype=np.int64)
    first = np.repeat(values["num_tokens"], rows) + 4 * _within(rows)
    copy_bytes(data, first, size, 4 * np.arange(info.num_packs), tokens.view(np.uint8))
    return Shard(
        path=path,
        info=info,
        values=values,
        offsets=offsets,
        num_tokens=tokens,
        num_samples=numbers[place + 1] - numbers[place] - np.int32(1),
        num_spans=num_spans,
    )


def _buffers(schema: pa.Schema) -> tuple[list[str], list[int]]:
    """The list columns of shards, and the numbers of the buffers of all values, then of the lists' offsets."""
    first = first_buffers(schema)
    lists = [name for name in LISTS if name in first]
    values = [*(first[name] + 3 for name in lists), *(first[name] + 1 for name in NUMBERS)]
    return lists, [*values, *(first[name] + 1 for name in lists)]


def _within(rows: Int64Array) -> Int64Array:
    """0, 1, 2, ... inside each record batch."""
    return np.arange(int(rows.sum())) - np.repeat(np.cumsum(rows) - rows, rows)


@njit(cache=True, nogil=True)
def copy_bytes(
    source: NDArray[np.uint8],
    begin: NDArray[np.int64],
    size: NDArray[np.int64],
    target: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy m spans of `source` into `out`. O(bytes); the caller guarantees that they are in range.

    Args:
        source: uint8[b], read-only.
        begin, size: int64[m], bytes: where each span begins, and how long it is.
        target: int64[m]: where it goes in `out`.
    """
    for i in range(len(begin)):
        for j in range(size[i]):
            out[target[i] + j] = source[begin[i] + j]


def as_source(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array as a read-only view, as `copy_bytes` expects."""
    view = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    view.flags.writeable = False
    return view
