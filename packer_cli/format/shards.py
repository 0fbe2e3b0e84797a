"""Reads packs from a shard by the places of their bytes, without pyarrow's objects.

pyarrow takes about 50 us to return a record batch of 15 columns, and ranks of a large plan need another one for
every pack; here the offsets of its buffers are read in about 4 us (`packer_cli.format.ipc`). pyarrow still opens the
file, checks its schema, and tells which buffers belong to which column.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.arrays import dtype_of
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.ipc import BLOCK_BYTES, find_blocks, first_buffers, read_block, read_metadata
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.format.marks import CHECKSUM, row_checksum
from packer_cli.format.schema import shard_schema
from packer_cli.format.token_parts import TokenParts

BATCHES_KEPT = 64

_KINDS = {field.name: [field.type] for field in shard_schema(pa.uint16(), is_weighted=True)}
_KINDS["input_ids"].append(shard_schema(pa.int32()).field("input_ids").type)
LISTS = ("input_ids", STARTS, STOPS, "cu_seqlens", "sample_ids")
INDEX_LISTS = ("cu_seqlens", "sample_ids", "sample_starts")
"""Of a shard that leaves the tokens in the token store."""
NUMBERS = ("pack_id", "num_loss_tokens", "cp_sharding")

_i8, _i32, _i64, _u64 = (Struct(f"<{code}").unpack_from for code in "biqQ")
_BITS = {8: "b", 16: "h", 32: "i", 64: "q"}
_pair = Struct("<ii").unpack_from


class Pack(NamedTuple):
    """One pack as stored in its shard; the arrays are read-only views of the file."""

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


class ShardFile:
    """The packs of one shard.

    Args:
        source: the file's memory map; packs are views of it, and keep it alive.
        lists: the list columns that must be there; `read` needs the default.

    Raises:
        FormatError: its columns are not those of a shard, or it is not an uncompressed Arrow IPC file.
        OSError, pa.ArrowInvalid, UnicodeDecodeError: pyarrow cannot read it.
    """

    def __init__(self, source: pa.NativeFile, lists: Sequence[str] = LISTS) -> None:
        reader = pa.ipc.open_file(source)
        self.schema: pa.Schema = reader.schema
        if not {*lists, *NUMBERS, CHECKSUM} <= set(self.schema.names):
            raise FormatError("it lacks columns")
        has_weights = WEIGHTS in self.schema.names
        for name in dict.fromkeys((*lists, *NUMBERS, CHECKSUM, *([WEIGHTS] if has_weights else []))):
            found, kinds = self.schema.field(name).type, _KINDS[name]
            # Whether items may be null, other tools say differently.
            if not any(found == kind or _items(found) == _items(kind) is not None for kind in kinds):
                raise FormatError(f"its column {name} is {found}, not {' or '.join(map(str, kinds))}")
        self.num_batches = reader.num_record_batches
        source.seek(0)
        self._bytes = memoryview(source.read_buffer())
        items = [self.schema.field(name).type.value_type for name in lists]
        views = {kind: self._view(dtype_of(kind)) for kind in set(items)}
        self._lists = [(views[kind], kind.byte_width) for kind in items]
        first = first_buffers(self.schema)
        self._buffers = [first[name] + at for name in lists for at in (1, 3)] + [first[name] + 1 for name in NUMBERS]
        self._weights = self._view(np.dtype(np.float32))
        if has_weights:
            self._buffers += [first[WEIGHTS] + 1, first[WEIGHTS] + 3]
        self._row: _Row | None = None
        if self.num_batches:
            self._blocks, _ = find_blocks(self._bytes)  # pyarrow has checked the footer.
        self._places: dict[int, tuple[int, ...]] = {}
        self._row_places: dict[int, tuple[int, ...]] = {}

    def _view(self, dtype: np.dtype) -> np.ndarray:
        return np.frombuffer(self._bytes, dtype=dtype, count=len(self._bytes) // dtype.itemsize)

    def read(self, row: int) -> Pack | None:
        """The pack in a row, None if there is no such row. Raises FormatError for a damaged record batch."""
        places = self._batch_of(row)
        if places is None:
            return None
        _, o0, v0, o1, v1, o2, v2, o3, v3, o4, v4, pack_id, num_loss_tokens, cp_sharding, *of_weights = places
        i = row % PACKS_PER_BATCH
        data, j = self._bytes, 4 * i
        (ids, _), (starts, _), (stops, _), (borders, _), (samples, _) = self._lists
        try:
            a, b = _pair(data, o0 + j)
            c, d = _pair(data, o1 + j)
            e, f = _pair(data, o2 + j)
            g, h = _pair(data, o3 + j)
            k, m = _pair(data, o4 + j)
            weights = None
            if of_weights:
                p, q = _pair(data, of_weights[0] + j)
                at = of_weights[1] // 4
                weights = self._weights[at + p : at + q]
            return Pack(
                _i64(data, pack_id + 8 * i)[0],
                _i32(data, num_loss_tokens + j)[0],
                ids[v0 + a : v0 + b],
                starts[v1 + c : v1 + d],
                stops[v2 + e : v2 + f],
                borders[v3 + g : v3 + h],
                samples[v4 + k : v4 + m],
                _i8(data, cp_sharding + i)[0],
                weights,
            )
        except error as why:
            raise FormatError(f"row {row} cannot be read: {why}") from None

    def _batch_of(self, row: int) -> tuple[int, ...] | None:
        """Where the columns of a row's record batch are, see `_find`; None if there is no such row."""
        number = row // PACKS_PER_BATCH
        places = self._places.get(number)
        if places is None:
            if not 0 <= number < self.num_batches:
                return None
            places = self._find(number)
        return places if row % PACKS_PER_BATCH < places[0] else None

    def check(self, row: int) -> None:
        """Raise FormatError if an existing row does not match its checksum. Price: one read of the row."""
        self._check(row, ())

    def _check(self, row: int, tokens: Sequence[np.ndarray]) -> None:
        """Args: `tokens`: the lists that the row leaves elsewhere, which come first."""
        number, i = row // PACKS_PER_BATCH, row % PACKS_PER_BATCH
        try:
            self._row = self._row or _Row(self.schema)
            starts = self._row_places.get(number)
            if starts is None:
                starts = self._row_places[number] = self.starts(number, self._row.buffers)[1:]
            expected, found = self._row.checksums(self._bytes, starts, i, tokens)
        except (error, IndexError, ValueError) as why:
            raise FormatError(f"row {row} cannot be read: {why}") from None
        if expected != found:
            raise FormatError(f"the checksum of row {row} is {found:016x}, not {expected:016x} as stored")

    def _find(self, number: int) -> tuple[int, ...]:
        """Number of rows; for each list where its offsets (bytes) and values (items) begin; then the numbers."""
        try:
            num_rows, *starts = self.starts(number, self._buffers)
        except (error, IndexError, ValueError) as why:
            raise FormatError(f"record batch {number} cannot be read: {why}") from None
        for at, (_, width) in enumerate(self._lists):
            starts[2 * at + 1] //= width
        places = (num_rows, *starts)
        if len(self._places) >= BATCHES_KEPT:
            self._places.clear()
            self._row_places.clear()
        self._places[number] = places
        return places

    def starts(self, number: int, buffers: Sequence[int]) -> tuple[int, ...]:
        """Rows of a record batch, and the bytes in the file where these buffers of it begin, see `first_buffers`.

        Raises:
            ValueError, IndexError, struct.error: it is damaged or compressed.
        """
        data = self._bytes
        offset, size = read_block(data, self._blocks + number * BLOCK_BYTES)
        num_rows, *places = read_metadata(data, offset, buffers)
        body = offset + size
        starts = [body + place for place in places]
        if not 0 <= min(starts) <= max(starts) <= len(data) or any(start & 7 for start in starts):
            raise ValueError("its buffers are not aligned")
        return (num_rows, *starts)


def _items(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if pa.types.is_list(kind) else None


class IndexFile(ShardFile):
    """The packs of a shard that leaves the tokens in the token store: each is gathered when it is read.

    Args:
        tokens: the token store.
    """

    def __init__(self, source: pa.NativeFile, tokens: TokenParts) -> None:
        super().__init__(source, INDEX_LISTS)
        self._tokens = tokens
        self._last: tuple[int, Pack] | None = None

    def read(self, row: int) -> Pack | None:
        """As `ShardFile.read`; the arrays of tokens are copies. Raises FormatError if the store lacks them, too."""
        places = self._batch_of(row)
        if places is None:
            return None
        _, *of_lists, pack_id, num_loss_tokens, cp_sharding = places
        i, data = row % PACKS_PER_BATCH, self._bytes
        try:
            columns = []
            for at, (values, _) in enumerate(self._lists):
                begin, end = _pair(data, of_lists[2 * at] + 4 * i)
                first = of_lists[2 * at + 1]
                columns.append(values[first + begin : first + end])
            numbers = _i64(data, pack_id + 8 * i)[0], _i32(data, num_loss_tokens + 4 * i)[0]
            sharding = _i8(data, cp_sharding + i)[0]
        except error as why:
            raise FormatError(f"row {row} cannot be read: {why}") from None
        borders, samples, starts = columns
        if not len(samples) == len(starts) == len(borders) - 1:
            raise FormatError(f"row {row} has other numbers of samples than of borders")
        ids, loss_starts, loss_stops, weights = self._tokens.gather(samples, starts, np.diff(borders))
        pack = Pack(*numbers, ids, loss_starts, loss_stops, borders, samples, sharding, weights)
        self._last = row, pack
        return pack

    def check(self, row: int) -> None:
        """As `ShardFile.check`, with the tokens that `read` gave for the row."""
        last, pack = self._last if self._last and self._last[0] == row else (row, self.read(row))
        if pack is not None:
            tokens = [pack.input_ids, pack.loss_starts, pack.loss_stops]
            self._check(last, tokens if pack.loss_weights is None else [*tokens, pack.loss_weights])


class _Row:
    """Locates a whole row and computes its checksum, as `marks.row_checksums` does."""

    def __init__(self, schema: pa.Schema) -> None:
        first = first_buffers(schema)
        kinds = {field.name: field.type for field in schema if field.name != CHECKSUM}
        lists = {name: kind.value_type.bit_width // 8 for name, kind in kinds.items() if pa.types.is_list(kind)}
        numbers = {name: kind.bit_width for name, kind in kinds.items() if name not in lists}
        self.buffers = [first[CHECKSUM] + 1, *(first[name] + 1 for name in numbers)]
        self.buffers += [first[name] + at for name in lists for at in (1, 3)]
        odd = next((name for name, width in numbers.items() if width not in _BITS), None)
        if odd is not None:
            raise ValueError(f"its column {odd} is {kinds[odd]}")
        codes = [_BITS[width] for width in numbers.values()]
        self._numbers = [
            (Struct(f"<{code}").unpack_from, width // 8) for code, width in zip(codes, numbers.values(), strict=True)
        ]
        self._packed = Struct("<" + "".join(codes))
        self._widths = list(lists.values())

    def checksums(
        self, data: memoryview, starts: Sequence[int], i: int, tokens: Sequence[np.ndarray]
    ) -> tuple[int, int]:
        """The stored checksum of row `i` of a record batch, and the actual one."""
        of_numbers, of_lists = starts[1 : len(self._numbers) + 1], starts[len(self._numbers) + 1 :]
        values = [
            read(data, start + size * i)[0] for (read, size), start in zip(self._numbers, of_numbers, strict=True)
        ]
        lists: list[Any] = list(tokens)
        for at, width in enumerate(self._widths):
            a, b = _pair(data, of_lists[2 * at] + 4 * i)
            begin = of_lists[2 * at + 1]
            lists.append(data[begin + a * width : begin + b * width])
        return _u64(data, starts[0] + 8 * i)[0], row_checksum(self._packed, values, lists)
