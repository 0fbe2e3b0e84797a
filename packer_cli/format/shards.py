"""Reads packs from a shard by the places of their bytes, without pyarrow's objects.

pyarrow takes about 50 us to return a record batch of 15 columns, and ranks of a large plan need another one for
every pack; here the offsets of its buffers are read in about 4 us. pyarrow still opens the file, reads its schema,
and tells which buffers belong to which column.

Layout: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format; the metadata are flatbuffers: a table
begins with the distance back to its vtable, which holds the offset of each field of the table. Whatever is damaged
there raises ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.arrays import Columns, Row, dtype_of
from packer_cli.format.checksums import CHECKSUM, row_checksum
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.ragged import Lists
from packer_cli.format.schema import TOKEN_COLUMNS
from packer_cli.format.token_parts import TokenParts
from packer_cli.format.trees import Trees

BATCHES_KEPT = 64


def _nothing(dtype: Any = np.int32, size: int = 0) -> NDArray[Any]:
    """Make the values of a column that a set lacks: no items."""
    values = np.zeros(size, dtype=dtype)
    values.flags.writeable = False
    return values


class Pack(NamedTuple):
    """One pack as stored in its shard, by the names of the columns; the arrays are read-only views of the file."""

    pack_id: int
    num_loss_tokens: int
    input_ids: np.ndarray
    """uint16 or int32 [t]"""
    loss_starts: np.ndarray
    """int32 [s]: where each loss span begins, see `format.loss_spans`"""
    loss_stops: np.ndarray
    """int32 [s]"""
    cu_seqlens: np.ndarray
    """int32 [n+1], from 0 to t"""
    sample_ids: np.ndarray
    """int64 [n]"""
    cp_sharding: int = 0
    """The planned context-parallel sharding, an index of `format.sharding.PLANNED`"""
    loss_weights: np.ndarray | None = None
    """float32 [s]: the weight of each loss span; None: the set has none"""
    segment_starts: np.ndarray = _nothing(size=1)
    """int32 [S+1], see `format.trees`. In a set of items n counts branches, `cu_seqlens` (int32 [roots+1]) has the
    borders of the trees, and loss spans are places in their branch; other sets have no items, here and in the rest."""
    segment_parents: np.ndarray = _nothing()
    """int32 [S]"""
    branch_segments: np.ndarray = _nothing()
    """int32 [n]"""
    branch_roles: np.ndarray = _nothing()
    """int8 [n]"""
    branch_loss_spans: np.ndarray = _nothing()
    """int32 [n]: loss spans of each branch"""
    item_ids: np.ndarray = _nothing()
    """int64 [n]: item of each branch; branches of an item stand together"""
    rewards: np.ndarray = _nothing(np.float32)
    """float32 [n]; NaN: it has none"""
    margin: np.ndarray = _nothing(np.float32)
    """float32 [items]; NaN: it has none. So are the log-probabilities of a reference model"""
    ref_chosen_logps: np.ndarray = _nothing(np.float32)
    ref_rejected_logps: np.ndarray = _nothing(np.float32)
    item_branches: np.ndarray = _nothing()
    """int32 [items]: branches of each item, or of the part of one that the pack has"""
    item_kinds: np.ndarray = _nothing()
    """int8 [items], see `format.trees`"""

    @property
    def trees(self) -> Trees:
        """The trees of the row."""
        return Trees(self.segment_starts, self.segment_parents, self.branch_segments)


class ShardFile:
    """The packs of one shard.

    Args:
        source: the file. Where it is read in ranges, only wanted record batches are. Packs are views of what was read,
            and keep it alive.
        schema: its columns.
        tokens: the token store in which the shard leaves the tokens of its packs; each is gathered when it is read.
        require: brings bytes `begin .. end - 1` of the file before they are read, if it has gaps: all of a record
            batch that precedes the items of its last column. The tokens of rows are left to the caller.

    Raises:
        FormatError: it has other columns.
        OSError, pa.ArrowInvalid: pyarrow cannot read it.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        schema: pa.Schema,
        tokens: TokenParts | None = None,
        require: Callable[[int, int], None] | None = None,
    ) -> None:
        self.schema: pa.Schema = pa.ipc.open_file(source).schema
        if not self.schema.equals(schema):
            raise FormatError("it has other columns")
        self._lists = [field.name for field in schema if pa.types.is_list(field.type)]
        self._dtypes = {field.name: dtype_of(field.type) for field in schema}
        self._of_pack = [name for name in Pack._fields if name in self._dtypes]
        first = first_buffers(schema)
        self._buffers = [*(first[name] + 1 for name in self._dtypes), *(first[name] + 3 for name in self._lists)]
        self._source, self._lock, self._tokens, self._require = source, Lock(), tokens, require
        self._batches: dict[int, Columns] = {}
        size = source.size()
        footer = footer_size(self._bytes(size - END_BYTES, END_BYTES))
        self._blocks = find_blocks(self._bytes(size - footer, footer))  # pyarrow has checked the footer.

    @property
    def num_batches(self) -> int:
        """The number of record batches."""
        return len(self._blocks)

    def read(self, row: int) -> Pack | None:
        """Read the pack in a row, None if there is no such row. Raises as `columns`."""
        if self._tokens is not None:
            found = self.columns(row)
            return Pack(**{name: found[name] for name in Pack._fields if name in found}) if found else None
        batch, i = self._find(row)
        return Pack(**{name: _value(batch[name], i) for name in self._of_pack}) if batch else None

    def columns(self, row: int) -> Row:
        """Read all values of a row by the names of their columns; none if there is no such row.

        Raises:
            FormatError: the record batch is damaged, or the token store lacks the tokens.
        """
        batch, i = self._find(row)
        found = row_of(batch, i)
        if self._tokens is None or not batch:
            return found
        borders, samples, starts = (found[name] for name in ("cu_seqlens", "sample_ids", "sample_starts"))
        if not len(samples) == len(starts) == len(borders) - 1:
            raise FormatError(f"row {row} has other numbers of samples than of borders")
        return found | self._tokens.gather(samples, starts, np.diff(borders))

    def value(self, row: int, name: str) -> Any:
        """Read the value of an existing row in a column: a number, or a view of a list's items. Raises as `read`."""
        batch, i = self._find(row)
        return _value(batch[name], i)

    def check(self, row: int, pack: Pack) -> None:
        """Raise FormatError if an existing row, of which `read` gave the pack, does not match its checksum.

        Price: one read of the row.
        """
        batch, i = self._find(row)
        left_out = (getattr(pack, name) for name in TOKEN_COLUMNS if name not in self._dtypes)
        tokens = [values for values in left_out if values is not None]
        expected, found = batch[CHECKSUM].item(i), row_checksum(batch, i, tokens)
        if expected != found:
            raise FormatError(f"the checksum of row {row} is {found:016x}, not {expected:016x} as stored")

    def _find(self, row: int) -> tuple[Columns, int]:
        """Find the record batch of a row, without columns if there is no such row; and the row's place there."""
        number, i = divmod(row, PACKS_PER_BATCH)
        batch = self._batches.get(number)
        if batch is None:
            if not 0 <= number < self.num_batches:
                return {}, i
            if len(self._batches) >= BATCHES_KEPT:
                self._batches.clear()
            batch = self._batches[number] = self.batch(number)
        return (batch if batch and i < len(batch[CHECKSUM]) else {}), i

    def batch(self, number: int, *, validates: bool = False) -> Columns:
        """Read the columns of a record batch, as views; none if it has no rows. Raises as `read`.

        Args:
            validates: whether pyarrow, by which other tools read shards, must find nothing wrong with it either.
        """
        try:
            return self._open(number, validates=validates)
        except (OSError, struct.error, IndexError, ValueError) as error:
            raise FormatError(f"record batch {number} cannot be read: {error}") from None

    def _open(self, number: int, *, validates: bool) -> Columns:
        begin, size, body = self._blocks[number]
        if self._require is not None:
            self._require(begin, begin + size)
        data = self._bytes(begin, size + body)
        if len(data) != size + body:
            raise ValueError("the footer says that it is of another size")
        if validates:
            pa.ipc.read_record_batch(pa.py_buffer(data), self.schema).validate(full=True)
        num_rows, *places = read_metadata(data, 0, self._buffers)
        starts = [size + place for place in places]
        if not 0 <= min(starts) <= max(starts) <= len(data) or any((begin + start) & 7 for start in starts):
            raise ValueError("its buffers are not aligned")
        if num_rows < 1:
            return {}
        if self._require is not None:
            self._require(begin, begin + starts[-1])
        items = dict(zip(self._lists, starts[len(self._dtypes) :], strict=True))
        columns: Columns = {}
        for (name, dtype), start in zip(self._dtypes.items(), starts, strict=False):
            if name in items:
                offsets: NDArray[Any] = np.frombuffer(data, np.int32, num_rows + 1, start)
                columns[name] = Lists(offsets, np.frombuffer(data, dtype, offsets.item(num_rows), items[name]))
            else:
                columns[name] = np.frombuffer(data, dtype, num_rows, start)
        return columns

    def _bytes(self, begin: int, size: int) -> memoryview:
        with self._lock:
            self._source.seek(begin)
            return memoryview(self._source.read_buffer(size))


def _value(column: NDArray[Any] | Lists, i: int) -> Any:
    return column.row(i) if isinstance(column, Lists) else column.item(i)


def row_of(columns: Columns, i: int) -> Row:
    """Return row `i` of a record batch."""
    return {name: _value(column, i) for name, column in columns.items()}


_END = Struct("<I6s")
END_BYTES = _END.size
"""Bytes at the end of a file that say how long its footer is."""

_BLOCK = Struct("<qi4xq")
BLOCK_BYTES = _BLOCK.size
"""Bytes of a footer for each record batch."""
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
