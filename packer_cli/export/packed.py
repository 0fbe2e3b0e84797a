"""Gathers packs of a set, in any order, from the memory-mapped shards; knows the sizes of all packs.

Price: opening reads each shard once for its checksum, and keeps the offsets of the buffers of each record batch (some
20 us for 16 packs), about 14 bytes a pack with the sizes; a gather copies only the requested columns and packs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from packer_cli.engine.base import Engine
from packer_cli.errors import FormatError
from packer_cli.format.arrays import Lists, dtype_of
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.entries import ShardInfo
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row, spans_to_mask, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.schema import TOKEN_COLUMNS, shard_schema
from packer_cli.format.shards import ShardFile
from packer_cli.remote.local import local_file, map_file
from packer_cli.tokens.store import TokenStore

Int64Array = NDArray[np.int64]

_SCHEMA = shard_schema(pa.int32(), is_weighted=True)

LISTS = {field.name: dtype_of(field.type.value_type) for field in _SCHEMA if pa.types.is_list(field.type)}
"""List columns of a shard and the dtypes in which they are read; shards may hold narrower ids."""

NUMBERS = {field.name: dtype_of(field.type) for field in _SCHEMA if not pa.types.is_list(field.type)}
MASK = "loss_mask"
"""A column of exports: whether each token carries a loss."""

_MAPS_KEPT = 256
"""Most shards to keep open: there may be more than a process may open."""


class PackedSet:
    """The packs of some groups of a packed data set. Safe for several threads at once."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        groups: Sequence[int],
        engine: Engine,
        to_check: Collection[str],
    ) -> None:
        """Open the shards of the groups.

        Args:
            to_check: paths of the shards, and of the parts of the token store, whose checksums to compare; others do
                so for the rest.

        Raises:
            FormatError: a shard is missing, or does not match the manifest.
        """
        self._map = lru_cache(maxsize=_MAPS_KEPT)(_map_shard)
        infos = [info for group in groups for info in manifest.groups[group].shards]
        schema = manifest.schema
        self.is_weighted = manifest.is_weighted
        """Whether loss tokens have weights."""
        self._store = _open_store(folder, manifest, engine, to_check) if manifest.tokens else None
        self._token = dtype_of(manifest.token_type)
        found: dict[int, _Shard] = dict(
            engine.run_threads(lambda info: _open_shard(folder, info, schema, checks=info.path in to_check), infos)
        )
        self._shards = [found[number] for number in sorted(found, key=lambda number: infos[number].first_pack)]
        self._first = np.array([shard.info.first_pack for shard in self._shards], dtype=np.int64)
        num_packs = sum(group.num_packs for group in manifest.groups)
        self.num_tokens = np.zeros(num_packs, dtype=np.int32)
        """int32[p], by pack id; 0 for packs of other groups."""
        self.num_samples = np.zeros(num_packs, dtype=np.int32)
        """int32[p]: samples, or pieces of them, in each pack."""
        self._num_spans = np.zeros(num_packs, dtype=np.int32)
        for info in infos:
            packs = np.arange(info.first_pack, info.first_pack + info.num_packs)
            self.num_tokens[packs] = self.numbers("num_tokens", packs)
            for name, numbers in (("cu_seqlens", self.num_samples), (STARTS, self._num_spans)):
                if name in schema.names:
                    begin, end = self._borders(name, packs)
                    numbers[packs] = end - begin
        self.num_samples[self.num_samples > 0] -= 1  # They have one border more.

    def lists(self, name: str, packs: Int64Array) -> Lists:
        """A list column of these packs, in this order. O(items).

        Args:
            packs: int64[k]: pack ids.
        """
        if self._store is not None and name in TOKEN_COLUMNS:
            return self._gather(self._store, name, packs)
        dtype = self._token if name == "input_ids" else LISTS[name]
        lengths = self._lengths(name, packs)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        out = np.empty(int(offsets[-1]), dtype=dtype)
        begins, ends = self._borders(name, packs)
        for shard, members, batch, _ in self._by_shard(packs):
            data = self._map(shard.path, shard.info)
            begin, end = begins[members], ends[members]
            first = shard.values[name][batch] + begin * dtype.itemsize
            size = (end - begin) * dtype.itemsize
            if not np.array_equal(end - begin, lengths[members]) or not _inside(first, size, len(data)):
                raise _damaged(shard.path, f"the lengths of {name} do not agree with num_tokens and cu_seqlens")
            copy_bytes(data, first, size, offsets[:-1][members] * dtype.itemsize, out.view(np.uint8))
        return Lists(offsets, out.astype(LISTS[name], copy=False))

    def _borders(self, name: str, packs: Int64Array) -> tuple[Int64Array, Int64Array]:
        """int64[k] each: where the list of each of these packs begins and ends among the items of its record batch."""
        begin, end = np.empty((2, len(packs)), dtype=np.int64)
        for shard, members, batch, row in self._by_shard(packs):
            data = self._map(shard.path, shard.info)
            numbers = data[: len(data) // 4 * 4].view(np.int32)
            place = shard.offsets[name][batch] // 4 + row
            begin[members], end[members] = numbers[place], numbers[place + 1]
        return begin, end

    def column(self, name: str, packs: Int64Array) -> Lists | NDArray[Any]:
        """A column of these packs, in this order; `MASK` and the weights of a set that has any are of tokens."""
        if name in (MASK, WEIGHTS):
            return self.loss_mask(packs) if name == MASK else self.loss_weights(packs)
        return self.lists(name, packs) if name in LISTS else self.numbers(name, packs)

    def _gather(self, store: TokenStore, name: str, packs: Int64Array) -> Lists:
        """A column of tokens of packs that leave them in the token store."""
        samples, starts = (self.lists(each, packs).values for each in ("sample_ids", "sample_starts"))
        gathered = store.gather(samples, starts, self.sample_lengths(packs).values)
        offsets = np.concatenate([[0], np.cumsum(self.num_tokens[packs], dtype=np.int64)])
        if name == "input_ids":
            return Lists(offsets, gathered.input_ids.astype(LISTS[name], copy=False))
        span_offsets, loss_starts, loss_stops = gathered.spans_by_row(offsets)
        of_spans: dict[str, Any] = {STARTS: loss_starts, STOPS: loss_stops, WEIGHTS: gathered.loss_weights}
        return Lists(span_offsets, of_spans[name])

    def loss_mask(self, packs: Int64Array) -> Lists:
        """int8: 1 for each token of these packs that carries a loss. O(tokens)."""
        starts, stops, begin, tokens = self._spans(packs)
        return Lists(tokens, spans_to_mask(starts + begin, stops + begin, int(tokens[-1])))

    def loss_weights(self, packs: Int64Array) -> Lists:
        """float32: the weight of each token's loss, 0 for none, of a set with weights. O(tokens)."""
        starts, stops, begin, tokens = self._spans(packs)
        weights = self.lists(WEIGHTS, packs).values
        return Lists(tokens, spans_to_weights(starts + begin, stops + begin, weights, int(tokens[-1])))

    def _spans(self, packs: Int64Array) -> tuple[NDArray[Any], NDArray[Any], Int64Array, Int64Array]:
        """Starts and stops of the loss spans, where the pack of each begins, and where the tokens of packs do."""
        starts, stops, lengths = self.lists(STARTS, packs), self.lists(STOPS, packs), self.sample_lengths(packs)
        tokens = np.concatenate([[0], np.cumsum(self.num_tokens[packs], dtype=np.int64)])
        borders = np.concatenate([[0], np.cumsum(lengths.values, dtype=np.int64)])
        weights = self.lists(WEIGHTS, packs).values if self.is_weighted else None
        wrong = find_wrong_row(starts.values, stops.values, starts.offsets, tokens, borders, weights)
        if wrong is not None:
            shard = self._shards[int(np.searchsorted(self._first, packs[wrong], side="right")) - 1]
            raise _damaged(shard.path, f"the loss spans of pack {packs[wrong]} are wrong")
        return starts.values, stops.values, np.repeat(tokens[:-1], np.diff(starts.offsets)), tokens

    def numbers(self, name: str, packs: Int64Array) -> NDArray[Any]:
        """A column of numbers of these packs, in this order: [k]."""
        dtype = NUMBERS[name]
        out = np.empty(len(packs), dtype=dtype)
        for shard, members, batch, row in self._by_shard(packs):
            data = self._map(shard.path, shard.info)
            items = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
            out[members] = items[shard.values[name][batch] // dtype.itemsize + row]
        return out

    def sample_lengths(self, packs: Int64Array) -> Lists:
        """int32: tokens of each sample of these packs, the differences of `cu_seqlens`."""
        borders = self.lists("cu_seqlens", packs)
        ends = np.ones(len(borders.values), dtype=bool)
        ends[borders.offsets[:-1]] = False
        lengths = np.diff(borders.values, prepend=np.int32(0))[ends]
        return Lists(offsets=borders.offsets - np.arange(len(packs) + 1), values=lengths.astype(np.int32))

    def _lengths(self, name: str, packs: Int64Array) -> NDArray[np.int32]:
        if name == "input_ids":
            return self.num_tokens[packs]
        if name in (STARTS, STOPS, WEIGHTS):
            return self._num_spans[packs]
        return self.num_samples[packs] + np.int32(name == "cu_seqlens")

    def _by_shard(self, packs: Int64Array) -> list[tuple[_Shard, Int64Array, Int64Array, Int64Array]]:
        """For each shard that holds any: (shard, indices into `packs`, their record batches, rows in these)."""
        number = np.searchsorted(self._first, packs, side="right") - 1
        order = np.argsort(number, kind="stable")
        present, begin = np.unique(number[order], return_index=True)
        result = []
        for shard, members in zip(present.tolist(), np.split(order, begin[1:]), strict=True):
            batch, row = np.divmod(packs[members] - self._first[shard], PACKS_PER_BATCH)
            result.append((self._shards[shard], members, batch, row))
        return result


def _open_store(folder: Path, manifest: Manifest, engine: Engine, to_check: Collection[str]) -> TokenStore:
    """The token store of an index-only set. Raises FormatError if it is missing or damaged."""
    parts = [part for part in manifest.tokens if part.path in to_check]
    sizes = [part.num_bytes for part in parts]
    for part, why in engine.find_faults(
        lambda part: find_damage(folder / part.path, part.num_bytes, part.xxh3), parts, sizes
    ):
        raise FormatError(f"token store part {str(folder / part.path)!r} is damaged ({why}); run hbpack pack again")
    store = TokenStore.open(folder / os.path.dirname(manifest.tokens[0].path))
    store.fetch_parts()
    return store


def _inside(begin: Int64Array, size: Int64Array, num_bytes: int) -> bool:
    return bool((begin >= 0).all() and (size >= 0).all() and (begin + size <= num_bytes).all())


@dataclass(frozen=True, kw_only=True)
class _Shard:
    """A shard of r packs in b record batches."""

    path: Path
    info: ShardInfo
    values: dict[str, Int64Array]
    """Column -> int64[b]: byte in the file where its values begin in each record batch."""
    offsets: dict[str, Int64Array]
    """List column -> int64[b]: byte in the file where its offsets begin in each record batch."""


def _damaged(path: Path, why: str) -> FormatError:
    """The error for a damaged shard."""
    return FormatError(f"shard {str(path)!r} is damaged or incomplete ({why}); run hbpack write again")


def _map_shard(path: Path, info: ShardInfo) -> NDArray[np.uint8]:
    """A shard: uint8[bytes], read-only."""
    with map_file(path, info.num_bytes, info.xxh3) as source:
        return np.frombuffer(source.read_buffer(), dtype=np.uint8)


def _open_shard(folder: Path, info: ShardInfo, schema: pa.Schema, *, checks: bool) -> _Shard:
    """Check a shard, and find its buffers.

    Args:
        schema: of all shards of the set.
        checks: whether to compare its checksum.

    Raises:
        FormatError: it is missing or damaged.
    """
    path = folder / info.path
    try:
        inside(folder, info.path)
        # Of a remote shard the copy that is mapped.
        copy = local_file(path, info.num_bytes, info.xxh3)
        why = find_damage(copy, info.num_bytes, info.xxh3) if checks else None
        if why is not None:
            raise ValueError(why)
        data = _map_shard(path, info)
        file = ShardFile(pa.BufferReader(data), schema.names)
        if not file.schema.equals(schema):
            raise ValueError("it has other columns")
        found = [file.starts(number) for number in range(file.num_batches)]
    except (OSError, ValueError, IndexError, struct.error, pa.ArrowException, FormatError) as error:
        require_damage(error)
        raise _damaged(path, str(error)) from None
    rows, *starts = np.array(found, dtype=np.int64).reshape(-1, 1 + len(file.dtypes) + len(file.lists)).T
    if rows.sum() != info.num_packs or (rows[:-1] != PACKS_PER_BATCH).any():
        raise _damaged(path, f"its record batches do not hold {info.num_packs} packs, {PACKS_PER_BATCH} each")
    first = dict(zip(file.dtypes, starts, strict=False))
    offsets = {name: first[name] for name in file.lists}
    values = {**first, **dict(zip(file.lists, starts[len(first) :], strict=True))}
    return _Shard(path=path, info=info, values=values, offsets=offsets)


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
