"""Finds record batches and their buffers in an Arrow IPC file by their bytes, without pyarrow's objects.

Layout: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format; the metadata are flatbuffers: a table
begins with the distance back to its vtable, which holds the offset of each field of the table.

Whatever is damaged raises ValueError, IndexError or struct.error.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import pyarrow as pa

_END = Struct("<I6s")
END_BYTES = _END.size
"""Bytes at the end of a file that say how long its footer is."""

_BLOCK = Struct("<qi4xq")
_PREFIX = Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_u8, _u16, _i32, _u32, _i64 = (Struct(f"<{code}").unpack_from for code in "BHiIq")


def find_blocks(data: memoryview) -> list[tuple[int, int, int]]:
    """Find the record batches: where each begins in its file, and the sizes of its metadata and of its body, which
    follows them.

    pyarrow checks the footer when it opens a file, but not the record batches.

    Args:
        data: the end of a file, with the whole footer; or all of it.
    """
    footer = _follow(data, len(data) - footer_size(data))
    vector = _follow(data, _field(data, footer, 3))
    first = vector + 4
    return [*_BLOCK.iter_unpack(data[first : first + _BLOCK.size * _u32(data, vector)[0]])]


def footer_size(data: memoryview) -> int:
    """Read the number of bytes from the beginning of the footer to the end of the file; `data` are its last bytes."""
    return int(_END.unpack_from(data, len(data) - _END.size)[0]) + _END.size


def read_metadata(data: memoryview, offset: int, buffers: Sequence[int]) -> tuple[int, ...]:
    """Read the number of rows of a record batch, and the beginnings of these buffers in its body.

    Args:
        offset: of its metadata.
        buffers: their numbers, see `first_buffers`.
    """
    mark, _ = _PREFIX.unpack_from(data, offset)
    if mark != _CONTINUATION:
        raise ValueError("it was written by Arrow before 0.15")
    message = _follow(data, offset + _PREFIX.size)
    batch = _follow(data, _field(data, message, 2))
    if _u8(data, _field(data, message, 1))[0] != _RECORD_BATCH or _field(data, batch, 3):
        raise ValueError("it is compressed, or not a record batch")
    num_rows = _i64(data, _field(data, batch, 0))[0]
    vector = _follow(data, _field(data, batch, 2))
    if max(buffers) >= _u32(data, vector)[0]:
        raise ValueError("it lacks buffers")
    first = vector + 4
    return (num_rows, *[_i64(data, first + 16 * buffer)[0] for buffer in buffers])


def first_buffers(schema: pa.Schema) -> dict[str, int]:
    """Find the number of the first buffer of each column in a record batch.

    A column of numbers has its validity and its values; one of lists has its validity, its offsets, and the two of its
    items.
    """
    first, number = {}, 0
    for field in schema:
        first[field.name] = number
        number += len(pa.nulls(0, field.type).buffers())
    return first


def _follow(data: memoryview, place: int) -> int:
    found: int = place + _u32(data, place)[0]
    return found


def _field(data: memoryview, table: int, number: int) -> int:
    """Find the place of a field of a flatbuffers table; 0 if it is absent."""
    vtable = table - _i32(data, table)[0]
    slot = 4 + 2 * number
    if slot >= _u16(data, vtable)[0]:
        return 0
    distance = _u16(data, vtable + slot)[0]
    return table + distance if distance else 0
