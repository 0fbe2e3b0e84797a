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
NUMBERS = {
    "pack_id": (Struct("<q").unpack_from, 8),
    "num_loss_tokens": (Struct("<i").unpack_from, 4),
    "cp_sharding": (Struct("<b").unpack_from, 1),
}
"""What reads each, and its bytes."""

_u64 = Struct("<Q").unpack_from
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


class _Places(NamedTuple):
    """Where the columns of a record batch begin in the file."""

    num_rows: int
    numbers: list[tuple[int, tuple[Any, int]]]
    """The first byte of each, and its entry of `NUMBERS`."""
    lists: list[tuple[int, int, np.ndarray]]
    """The first byte of the offsets, the first item in the view, and the view."""


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
        names = set(self.schema.names)
        if not {*lists, *NUMBERS, CHECKSUM} <= names:
            raise FormatError("it lacks columns")
        lists = [*dict.fromkeys((*lists, *({WEIGHTS} & names)))]
        for name in (*lists, *NUMBERS, CHECKSUM):
            found, kinds = self.schema.field(name).type, _KINDS[name]
            # Whether items may be null, other tools say differently.
            if not any(found == kind or _items(found) == _items(kind) is not None for kind in kinds):
                raise FormatError(f"its column {name} is {found}, not {' or '.join(map(str, kinds))}")
        self.num_batches = reader.num_record_batches
        source.seek(0)
        self._bytes = memoryview(source.read_buffer())
        items = [dtype_of(self.schema.field(name).type.value_type) for name in lists]
        views = {kind: np.frombuffer(self._bytes, kind, len(self._bytes) // kind.itemsize) for kind in set(items)}
        self._views = [views[kind] for kind in items]
        first = first_buffers(self.schema)
        self._buffers = [first[name] + 1 for name in NUMBERS] + [first[name] + at for name in lists for at in (1, 3)]
        self._row: _Row | None = None
        if self.num_batches:
            self._blocks, _ = find_blocks(self._bytes)  # pyarrow has checked the footer.
        self._places: dict[int, _Places] = {}
        self._row_places: dict[int, tuple[int, ...]] = {}

    def read(self, row: int) -> Pack | None:
        """The pack in a row, None if there is no such row. Raises FormatError for a damaged record batch."""
        found = self._read(row)
        if found is None:
            return None
        (pack_id, num_loss_tokens, sharding), (ids, starts, stops, borders, samples, *weights) = found
        return Pack(pack_id, num_loss_tokens, ids, starts, stops, borders, samples, sharding, *weights)

    def _read(self, row: int) -> tuple[list[int], list[np.ndarray]] | None:
        """The numbers and lists of a row; None if there is no such row."""
        number, i = divmod(row, PACKS_PER_BATCH)
        places = self._places.get(number)
        if places is None:
            if not 0 <= number < self.num_batches:
                return None
            places = self._find(number)
        if i >= places.num_rows:
            return None
        data, arrays = self._bytes, []
        try:
            for offsets, first, view in places.lists:
                begin, end = _pair(data, offsets + 4 * i)
                arrays.append(view[first + begin : first + end])
            return [unpack(data, begin + width * i)[0] for begin, (unpack, width) in places.numbers], arrays
        except error as why:
            raise FormatError(f"row {row} cannot be read: {why}") from None

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

    def _find(self, number: int) -> _Places:
        try:
            num_rows, *starts = self.starts(number, self._buffers)
        except (error, IndexError, ValueError) as why:
            raise FormatError(f"record batch {number} cannot be read: {why}") from None
        of_lists = starts[len(NUMBERS) :]
        firsts = [begin // view.itemsize for begin, view in zip(of_lists[1::2], self._views, strict=True)]
        lists = [*zip(of_lists[::2], firsts, self._views, strict=True)]
        if len(self._places) >= BATCHES_KEPT:
            self._places.clear()
            self._row_places.clear()
        places = self._places[number] = _Places(num_rows, [*zip(starts, NUMBERS.values(), strict=False)], lists)
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
        found = self._read(row)
        if found is None:
            return None
        (pack_id, num_loss_tokens, sharding), (borders, samples, starts, *_) = found
        if not len(samples) == len(starts) == len(borders) - 1:
            raise FormatError(f"row {row} has other numbers of samples than of borders")
        ids, loss_starts, loss_stops, weights = self._tokens.gather(samples, starts, np.diff(borders))
        pack = Pack(pack_id, num_loss_tokens, ids, loss_starts, loss_stops, borders, samples, sharding, weights)
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
