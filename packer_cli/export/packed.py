"""Gathers packs of a set, in any order, from the memory-mapped shards; knows the sizes of all packs.

Price: opening reads each shard once for its checksum, and keeps the offsets of the buffers of each record batch (some
20 us for 16 packs), about 14 bytes a pack with the sizes; a gather copies only the requested columns and packs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.base import Engine
from packer_cli.errors import FormatError
from packer_cli.export.shard import LISTS, NUMBERS, Int64Array, Shard, copy_bytes, damaged, map_shard, open_shard
from packer_cli.format.checksums import find_damage
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.entries import PartInfo
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row, spans_to_mask, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.schema import TOKEN_COLUMNS, token_type
from packer_cli.tokens.store import TokenStore

_MAPS_KEPT = 256
"""Most shards to keep open: there may be more than a process may open."""


@dataclass(frozen=True, kw_only=True)
class Lists:
    """A list column of k packs."""

    offsets: Int64Array
    """int64[k+1]"""
    values: NDArray[Any]
    """[offsets[-1]]: the items of all packs, one pack after another."""


class PackedSet:
    """The packs of some groups of a packed data set. Safe for several threads at once."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        groups: Sequence[int],
        engine: Engine,
        *,
        to_check: Collection[str] | None = None,
    ) -> None:
        """Open the shards of the groups.

        Args:
            to_check: paths of the shards, and of the parts of the token store, whose checksums to compare; others do
                so for the rest. None: all.

        Raises:
            FormatError: a shard is missing, or does not match the manifest.
        """
        self._map = lru_cache(maxsize=_MAPS_KEPT)(map_shard)
        infos = [info for group in groups for info in manifest.groups[group].shards]
        schema = manifest.schema
        token = token_type(manifest.tokenizer.get("vocab_size"))
        self.is_weighted = manifest.is_weighted
        """Whether loss tokens have weights."""
        self._store = _open_store(folder, manifest, engine, to_check) if manifest.tokens else None
        self._token = np.dtype(str(token))
        found: dict[int, Shard] = dict(
            engine.run_threads(
                lambda info: open_shard(folder, info, schema, checks=to_check is None or info.path in to_check), infos
            )
        )
        self._shards = [found[number] for number in sorted(found, key=lambda number: infos[number].first_pack)]
        self._first = np.array([shard.info.first_pack for shard in self._shards], dtype=np.int64)
        num_packs = sum(group.num_packs for group in manifest.groups)
        self.num_tokens = np.zeros(num_packs, dtype=np.int32)
        """int32[p], by pack id; 0 for packs of other groups."""
        self.num_samples = np.zeros(num_packs, dtype=np.int32)
        """int32[p]: samples, or pieces of them, in each pack."""
        self._num_spans = np.zeros(num_packs, dtype=np.int32)
        for shard in self._shards:
            rows = slice(shard.info.first_pack, shard.info.first_pack + shard.info.num_packs)
            self.num_tokens[rows] = shard.num_tokens
            self.num_samples[rows] = shard.num_samples
            self._num_spans[rows] = shard.num_spans

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
        for shard, members, batch, row in self._by_shard(packs):
            data = self._map(shard.path, shard.info)
            numbers = data[: len(data) // 4 * 4].view(np.int32)
            place = shard.offsets[name][batch] // 4 + row
            begin, end = numbers[place].astype(np.int64), numbers[place + 1].astype(np.int64)
            first = shard.values[name][batch] + begin * dtype.itemsize
            size = (end - begin) * dtype.itemsize
            if not np.array_equal(end - begin, lengths[members]) or not _inside(first, size, len(data)):
                raise damaged(shard.path, f"the lengths of {name} do not agree with num_tokens and cu_seqlens")
            copy_bytes(data, first, size, offsets[:-1][members] * dtype.itemsize, out.view(np.uint8))
        return Lists(offsets=offsets, values=out.astype(LISTS[name], copy=False))

    def _gather(self, store: TokenStore, name: str, packs: Int64Array) -> Lists:
        """A column of tokens of packs that leave them in the token store."""
        samples, starts, lengths = (
            self.lists("sample_ids", packs),
            self.lists("sample_starts", packs),
            self.sample_lengths(packs),
        )
        gathered = store.gather(samples.values, starts.values, lengths.values)
        offsets = np.concatenate([[0], np.cumsum(self.num_tokens[packs], dtype=np.int64)])
        if name == "input_ids":
            return Lists(offsets=offsets, values=gathered.input_ids.astype(LISTS[name], copy=False))
        span_offsets, loss_starts, loss_stops = gathered.spans_by_row(offsets)
        of_spans: dict[str, Any] = {STARTS: loss_starts, STOPS: loss_stops, WEIGHTS: gathered.loss_weights}
        return Lists(offsets=span_offsets, values=of_spans[name])

    def loss_mask(self, packs: Int64Array) -> Lists:
        """int8: 1 for each token of these packs that carries a loss. O(tokens)."""
        starts, stops, begin, tokens = self._spans(packs)
        return Lists(offsets=tokens, values=spans_to_mask(starts + begin, stops + begin, int(tokens[-1])))

    def loss_weights(self, packs: Int64Array) -> Lists:
        """float32: the weight of each token's loss, 0 for none, of a set with weights. O(tokens)."""
        starts, stops, begin, tokens = self._spans(packs)
        weights = self.lists(WEIGHTS, packs).values
        return Lists(offsets=tokens, values=spans_to_weights(starts + begin, stops + begin, weights, int(tokens[-1])))

    def _spans(self, packs: Int64Array) -> tuple[NDArray[Any], NDArray[Any], Int64Array, Int64Array]:
        """Starts and stops of the loss spans, where the pack of each begins, and where the tokens of packs do."""
        starts, stops, lengths = self.lists(STARTS, packs), self.lists(STOPS, packs), self.sample_lengths(packs)
        tokens = np.concatenate([[0], np.cumsum(self.num_tokens[packs], dtype=np.int64)])
        borders = np.concatenate([[0], np.cumsum(lengths.values, dtype=np.int64)])
        weights = self.lists(WEIGHTS, packs).values if self.is_weighted else None
        wrong = find_wrong_row(starts.values, stops.values, starts.offsets, tokens, borders, weights)
        if wrong is not None:
            shard = self._shards[int(np.searchsorted(self._first, packs[wrong], side="right")) - 1]
            raise damaged(shard.path, f"the loss spans of pack {packs[wrong]} are wrong")
        return starts.values, stops.values, np.repeat(tokens[:-1], np.diff(starts.offsets)), tokens

    def numbers(self, name: str, packs: Int64Array) -> NDArray[Any]:
        """A column of numbers of these packs, in this order: [k]."""
        dtype = NUMBERS[name]
        out = np.empty(len(packs), dtype=dtype)
        for shard, members, batch, row in self._by_shard(packs):
            data = self._map(shard.path, shard.info)
            first = shard.values[name][batch] + row * dtype.itemsize
            size = np.full(len(members), dtype.itemsize, dtype=np.int64)
            copy_bytes(data, first, size, members * dtype.itemsize, out.view(np.uint8))
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

    def _by_shard(self, packs: Int64Array) -> list[tuple[Shard, Int64Array, Int64Array, Int64Array]]:
        """For each shard that holds any: (shard, indices into `packs`, their record batches, rows in these)."""
        number = np.searchsorted(self._first, packs, side="right") - 1
        order = np.argsort(number, kind="stable")
        present, begin = np.unique(number[order], return_index=True)
        result = []
        for shard, members in zip(present.tolist(), np.split(order, begin[1:]), strict=True):
            batch, row = np.divmod(packs[members] - self._first[shard], PACKS_PER_BATCH)
            result.append((self._shards[shard], members, batch, row))
        return result


def _open_store(folder: Path, manifest: Manifest, engine: Engine, to_check: Collection[str] | None) -> TokenStore:
    """The token store of an index-only set. Raises FormatError if it is missing or damaged."""

    def check(part: PartInfo) -> None:
        why = find_damage(folder / part.path, part.num_bytes, part.xxh3)
        if why is not None:
            raise FormatError(
                f"token store part {str(folder / part.path)!r} is damaged ({why}); run hbpack pack again"
            )

    parts = [part for part in manifest.tokens if to_check is None or part.path in to_check]
    for _ in engine.run_threads(check, parts):
        pass
    store = TokenStore.open(folder / os.path.dirname(manifest.tokens[0].path))
    store.fetch_parts()
    return store


def _inside(begin: Int64Array, size: Int64Array, num_bytes: int) -> bool:
    return bool((begin >= 0).all() and (size >= 0).all() and (begin + size <= num_bytes).all())
