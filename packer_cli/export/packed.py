"""Columns of the packs of a set, in any order: gathered from the memory-mapped shards, or computed for trainers.

Price: opening reads each shard once for its checksum, and keeps 8 bytes a pack, its sizes; a gather copies only the
requested columns and packs, and takes some 2 us a pack.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.engine.local import Engine
from packer_cli.errors import FormatError, fault_of
from packer_cli.format.arrays import Lists, dtype_of
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import PACKS_PER_BATCH, PLAN_NAME
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.ragged import expand, offsets_of
from packer_cli.format.schema import TOKEN_COLUMNS, RowColumns
from packer_cli.format.shards import ShardFile
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import Pieces
from packer_cli.remote.local import local_file, map_file
from packer_cli.shards.plan_file import check_plan_file, read_plan
from packer_cli.tokens.store import TokenStore, open_store

Int64Array = NDArray[np.int64]

_SCHEMA = RowColumns(is_weighted=True).shard(pa.int32())

LISTS = {field.name: dtype_of(field.type.value_type) for field in _SCHEMA if pa.types.is_list(field.type)}
"""List columns of a shard and the dtypes in which they are read; shards may hold narrower ids."""

NUMBERS = {field.name: dtype_of(field.type) for field in _SCHEMA if not pa.types.is_list(field.type)}
MASK = "loss_mask"
"""A column of exports: whether each token carries a loss."""

_SHARDS_KEPT = 256
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
            FormatError: a shard is missing, or does not match the manifest; or the plan is damaged.
        """
        infos = [info for group in groups for info in manifest.groups[group].shards]
        self._folder, self._schema = folder, manifest.schema
        self._shards = sorted(infos, key=lambda info: info.first_pack)
        self._first = np.array([info.first_pack for info in self._shards], dtype=np.int64)
        self._file = lru_cache(maxsize=_SHARDS_KEPT)(self._open)
        self.is_weighted = manifest.is_weighted
        """Whether loss tokens have weights."""
        self._store = _open_store(folder, manifest, engine, to_check) if manifest.tokens else None
        for _ in engine.run_threads(lambda number: self._check(number, to_check), range(len(infos))):
            pass
        check_plan_file(folder / PLAN_NAME)
        plan, _ = read_plan(folder / PLAN_NAME)
        self.num_tokens = pack_sums(plan.pieces.length, plan.packs.offsets, plan.packs.pieces).astype(np.int32)
        """int32[p], by pack id."""
        self.num_samples = np.diff(plan.packs.offsets).astype(np.int32)
        """int32[p]: samples, or pieces of them, in each pack."""

    def _open(self, number: int) -> ShardFile:
        info = self._shards[number]
        with map_file(self._folder / info.path, info.num_bytes, info.xxh3) as source:
            return ShardFile(pa.BufferReader(source.read_buffer()), self._schema)

    def _check(self, number: int, to_check: Collection[str]) -> None:
        """Open a shard, perhaps compare its checksum. Raises FormatError if it is missing or damaged."""
        info = self._shards[number]
        path = self._folder / info.path
        try:
            inside(self._folder, info.path)
            # Of a remote shard the copy that is mapped.
            copy = local_file(path, info.num_bytes, info.xxh3)
            why = find_damage(copy, info.num_bytes, info.xxh3) if info.path in to_check else None
            if why is not None:
                raise ValueError(why)
            if self._file(number).num_batches != -(-info.num_packs // PACKS_PER_BATCH):
                raise ValueError(f"it does not hold its {info.num_packs} packs")
        except (OSError, ValueError, pa.ArrowException, FormatError) as error:
            require_damage(error)
            raise self._damaged(number, error) from None

    def _damaged(self, number: int, why: object) -> FormatError:
        path = self._folder / self._shards[number].path
        return FormatError(f"shard {str(path)!r} {fault_of(why)}; run hbpack write again")

    def _values(self, name: str, packs: Int64Array) -> list[Any]:
        """Return the value of each of these packs in a column; shard by shard, as not all can be open."""
        number = np.searchsorted(self._first, packs, side="right") - 1
        rows, shards = (packs - self._first[number]).tolist(), number.tolist()
        values: list[Any] = [None] * len(packs)
        for i in np.argsort(number, kind="stable").tolist():
            values[i] = self._file(shards[i]).value(rows[i], name)
        return values

    def lists(self, name: str, packs: Int64Array) -> Lists:
        """Return a list column of these packs, in this order. O(items).

        Args:
            packs: int64[k]: pack ids.
        """
        if self._store is not None and name in TOKEN_COLUMNS:
            return self._gather(self._store, name, packs)
        values = self._values(name, packs)
        sizes = np.array([len(items) for items in values])
        return Lists(offsets_of(sizes), np.concatenate([np.empty(0, LISTS[name]), *values], dtype=LISTS[name]))

    def column(self, name: str, packs: Int64Array) -> Lists | NDArray[Any]:
        """Return a column of these packs, in this order; `MASK` and weights, if any, are of tokens."""
        if name in (MASK, WEIGHTS):
            return self.loss_mask(packs, is_weighted=name == WEIGHTS)
        if name in LISTS:
            return self.lists(name, packs)
        return np.array(self._values(name, packs), dtype=NUMBERS[name])

    def _gather(self, store: TokenStore, name: str, packs: Int64Array) -> Lists:
        """Gather a column of tokens of packs that leave their tokens in the token store."""
        samples, starts = (self.lists(each, packs).values for each in ("sample_ids", "sample_starts"))
        lengths = self.sample_lengths(packs)
        found = store.gather(Pieces(samples=samples, start=starts, length=lengths.values), lengths.offsets)[name]
        return Lists(found.offsets, found.values.astype(LISTS[name], copy=False))

    def loss_mask(self, packs: Int64Array, *, is_weighted: bool = False) -> Lists:
        """Return 1 (int8) for each token of these packs with a loss, or its weight (float32); else 0. O(tokens).

        Args:
            is_weighted: whether to give weights, of a set that has any.
        """
        starts, stops, lengths = self.lists(STARTS, packs), self.lists(STOPS, packs), self.sample_lengths(packs)
        tokens, borders = offsets_of(self.num_tokens[packs]), offsets_of(lengths.values)
        weights = self.lists(WEIGHTS, packs).values if self.is_weighted else None
        wrong = find_wrong_row(starts.values, stops.values, starts.offsets, tokens, borders, weights)
        if wrong is not None:
            number = int(np.searchsorted(self._first, packs[wrong], side="right")) - 1
            raise self._damaged(number, f"the loss spans of pack {packs[wrong]} are wrong")
        begin, given = np.repeat(tokens[:-1], np.diff(starts.offsets)), weights if is_weighted else None
        return Lists(tokens, spans_to_weights(starts.values + begin, stops.values + begin, given, int(tokens[-1])))

    def sample_lengths(self, packs: Int64Array) -> Lists:
        """Return the tokens (int32) of each sample of these packs, the differences of `cu_seqlens`."""
        borders = self.lists("cu_seqlens", packs)
        ends = np.ones(len(borders.values), dtype=bool)
        ends[borders.offsets[:-1]] = False
        lengths = np.diff(borders.values, prepend=np.int32(0))[ends]
        return Lists(offsets=borders.offsets - np.arange(len(packs) + 1), values=lengths.astype(np.int32))


def _open_store(folder: Path, manifest: Manifest, engine: Engine, to_check: Collection[str]) -> TokenStore:
    """Open the token store of an index-only set. Raises FormatError if it is missing or damaged."""
    parts = [part for part in manifest.tokens if part.path in to_check]
    sizes = [part.num_bytes for part in parts]
    for part, why in engine.find_faults(
        lambda part: find_damage(folder / part.path, part.num_bytes, part.xxh3), parts, sizes
    ):
        raise FormatError(f"token store part {str(folder / part.path)!r} is damaged ({why}); run hbpack pack again")
    store = open_store(folder / os.path.dirname(manifest.tokens[0].path))
    store.fetch_parts()
    return store


NO_LOSS = -100
"""The label of a token that carries no loss."""


def labels_of(packed: PackedSet, packs: Int64Array) -> Lists:
    """Label (int32) each token by its own id if it carries a loss, else by -100; a sample's first token never does."""
    ids, mask = packed.lists("input_ids", packs), packed.loss_mask(packs)
    return Lists(ids.offsets, np.where(mask.values != 0, ids.values, np.int32(NO_LOSS)))


def shifted(labels: Lists, nothing: int = NO_LOSS) -> Lists:
    """Shift labels one token earlier: what each token predicts. The last token of a pack predicts nothing.

    Since a sample's first token carries no loss, its last one predicts nothing either.

    >>> shifted(Lists(np.array([0, 3, 5]), np.array([-100, 7, 8, -100, 9]))).values.tolist()
    [7, 8, -100, 9, -100]
    """
    values = np.full_like(labels.values, nothing)
    values[:-1] = labels.values[1:]
    values[labels.offsets[1:] - 1] = nothing
    return Lists(labels.offsets, values)


def pad_samples(items: Lists, lengths: Lists, sizes: Lists, value: int) -> Lists:
    """Pad the items of every pack, each sample's followed by pads. O(items).

    Args:
        lengths: items of each sample.
        sizes: the same with pads, at least as many.
        value: the pad.

    >>> one = lambda values: Lists(offsets=np.array([0, len(values)]), values=np.array(values))
    >>> pad_samples(one([5, 6, 7]), one([1, 2]), one([2, 4]), 0).values.tolist()
    [5, 0, 6, 7, 0, 0]
    """
    if sizes is lengths:
        return items
    ends = np.concatenate([[0], np.cumsum(sizes.values, dtype=np.int64)])
    moved = ends[:-1] - (np.cumsum(lengths.values, dtype=np.int64) - lengths.values)
    values = np.full(int(ends[-1]), value, dtype=items.values.dtype)
    values[np.arange(len(items.values)) + np.repeat(moved, lengths.values)] = items.values
    return Lists(ends[sizes.offsets], values)


def positions_of(lengths: Lists, token_offsets: Int64Array) -> Lists:
    """Return the position (int32) of each token in its sample.

    Args:
        lengths: tokens of each sample of the packs.
        token_offsets: int64[k+1]: where the tokens of each pack begin.
    """
    return Lists(token_offsets, expand(np.zeros_like(lengths.values), lengths.values).astype(np.int32))


def sample_numbers(lengths: Lists, token_offsets: Int64Array) -> Lists:
    """Give each token (int32) the number of its sample: 1 for a pack's first sample, 2 for its second, and so on."""
    numbers = np.arange(len(lengths.values)) - np.repeat(lengths.offsets[:-1], np.diff(lengths.offsets)) + 1
    return Lists(token_offsets, np.repeat(numbers, lengths.values).astype(np.int32))


def all_text(texts: pa.Array) -> pa.Buffer:
    """Return the bytes of texts that a function of Arrow made, one after another."""
    _, _, data = texts.buffers()
    return data[: pc.sum(pc.binary_length(texts)).as_py()]


def padded(lists: Lists, length: int, value: int | NDArray[np.int32]) -> Lists:
    """Pad every pack's items to `length`. O(k * length).

    Args:
        value: the padding: one number, or int32[k, length], of which each row's end is used.

    >>> padded(Lists(np.array([0, 1, 3]), np.array([5, 6, 7])), 4, 0).values.tolist()
    [5, 0, 0, 0, 6, 7, 0, 0]
    """
    sizes = np.diff(lists.offsets)
    rows = np.broadcast_to(np.asarray(value, dtype=np.int32), (len(sizes), length)).copy()
    rows[np.arange(length) < sizes[:, None]] = lists.values
    return Lists(offsets=np.arange(len(sizes) + 1, dtype=np.int64) * length, values=rows.reshape(-1))
