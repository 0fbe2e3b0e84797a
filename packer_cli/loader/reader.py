"""Reads the packs of a rank from memory-mapped shards, as views without copies.

Price: opening a shard takes about a millisecond; then a pack is four slices of the file, 4 us, or 10 us for the first
of its record batch (16 packs). Views use no memory beyond the page cache, so memory stays flat however many packs are
read.

Each row has its own checksum, which is compared when the row is first read from an open shard. So a rank pays only for
the packs that it reads, some 10 us for 16K tokens, not for whole shards, of which it needs little if there are many
ranks; and damage to a shard after it was opened is found too.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.entries import ShardInfo
from packer_cli.format.manifest import Manifest
from packer_cli.format.marks import find_foreign
from packer_cli.format.ranks import RankRow, RankRows
from packer_cli.format.shards import IndexFile, Pack, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.loader.batch import NO_PACK
from packer_cli.loader.storage import Storage
from packer_cli.remote.cache import KeptFile


class _Open:
    """An open shard, and which of its rows have been compared with their checksums."""

    def __init__(self, file: ShardFile, kept: KeptFile, entry: ShardInfo, *, is_checked: bool) -> None:
        self._file, self._kept, self._entry = file, kept, entry
        self._is_checked = bytearray([is_checked]) * entry.num_packs
        self.close = kept.close  # Allows a cache to remove the shard.

    def read(self, row: int) -> Pack:
        """Read the pack in a row of those that should be there. Raises FormatError unless it was written there."""
        if not self._is_checked[row]:
            self._require_whole()
        pack = self._file.read(row)
        if pack is None:
            raise FormatError(f"no row {row}")
        if pack.pack_id != self._entry.first_pack + row:
            raise FormatError(f"row {row} holds pack {pack.pack_id}, not {self._entry.first_pack + row}")
        if not self._is_checked[row]:
            self._file.check(row, pack)
            self._is_checked[row] = True
        return pack

    def _require_whole(self) -> None:
        """Require that nothing is cut off: reading that from a mapped file would end the process with SIGBUS."""
        with suppress(FileNotFoundError):  # Then the mapping stays whole.
            num_bytes = os.stat(self._kept.path).st_size
            if num_bytes < self._entry.num_bytes:
                raise FormatError(
                    f"cut short to {num_bytes} bytes while it was open, hbpack.json says {self._entry.num_bytes}"
                )


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not safe for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(self, storage: Storage, manifest: Manifest, prefetch: int = 0) -> None:
        """Open nothing yet.

        Args:
            prefetch: how many shards to fetch ahead, if they are remote.
        """
        self.storage, self.manifest, self._prefetch = storage, manifest, prefetch
        self._columns = [name for name in Pack._fields if name in manifest.schema.names]
        self._parts = TokenParts(
            lambda part: _map(storage.open_shard(part, self._close)), manifest.tokens, is_weighted=manifest.is_weighted
        )
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._retried: set[str] = set()
        self._files: OrderedDict[tuple[int, int], _Open] = OrderedDict()

    def close(self) -> None:
        """Close all shards, and wait for one that is being fetched; reading opens them again."""
        self.storage.stop()
        self._close()

    def _close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardReader, (self.storage, self.manifest, self._prefetch)

    def read_row(self, rows: RankRows, number: int) -> tuple[RankRow, Pack]:
        """Read row `number` of a rank, and its pack, or that of a filler; fetch the shards that follow.

        Raises:
            FormatError: as `read`.
        """
        row = rows.row(number)
        if row.shard < 0:
            return row, NO_PACK
        fetches = self._prefetch and self.storage.cache is not None and not self._is_open(row.group, row.shard)
        pack = self.read(row.group, row.shard, row.row)
        if fetches:
            places = next_shards(rows, number, self._prefetch + self.storage.files_kept)
            others = [place for place in places if not self._is_open(*place)][: self._prefetch]
            self.storage.prefetch([self._entry(*place) for place in others])
        return row, pack

    def read(self, group: int, shard: int, row: int) -> Pack:
        """Read the pack in `row` of shard number `shard` of group number `group`.

        Raises:
            FormatError: the shard is missing, or does not match the manifest.
        """
        if self._pid != os.getpid():
            self._forget()
        key = (group, shard)
        opened = self._files.get(key)
        if opened is None:
            while len(self._files) >= self.storage.files_kept:
                self._files.popitem(last=False)[1].close()
            opened = self._files[key] = self._open(self._entry(group, shard))
        else:
            self._files.move_to_end(key)
        try:
            return opened.read(row)
        except FormatError as error:
            self._files.pop(key).close()
            self._try_again(self._entry(group, shard), str(error))
        return self.read(group, shard, row)

    def _is_open(self, group: int, shard: int) -> bool:
        return (group, shard) in self._files and self._pid == os.getpid()

    def check_all(self) -> None:
        """Check every shard of the set and every part of the token store that they need, and open each shard."""
        for part in self.manifest.tokens:
            try:
                why = find_damage(inside(self.storage.root, part.path), part.num_bytes, part.xxh3)
            except ValueError as error:
                why = str(error)
            if why is not None:
                name = self.storage.name(part.path)
                raise FormatError(f"token store part {name!r} is damaged ({why}); run hbpack pack again")
        for entry in self.manifest.shards:
            self._open(entry, is_whole_checked=True).close()

    def _open(self, entry: ShardInfo, *, is_whole_checked: bool = False) -> _Open:
        while True:
            try:
                kept = self.storage.open_shard(entry, self._close)
            except (OSError, ValueError, FormatError) as error:
                require_damage(error)
                raise self._damaged(entry, error) from None
            try:
                if is_whole_checked and (damage := find_damage(kept.path, entry.num_bytes, entry.xxh3)):
                    raise FormatError(damage)
                source = pa.BufferReader(_map(kept))
                file = IndexFile(source, self._parts) if self.manifest.tokens else ShardFile(source, self._columns)
                why = find_foreign(file.schema, self.manifest.planned_fingerprint, entry.path)
                if why is None:
                    return _Open(file, kept, entry, is_checked=self.storage.verify == "none")
            except (OSError, FormatError, pa.ArrowException, UnicodeDecodeError) as error:
                require_damage(error)
                why = str(error)
            kept.close()
            self._try_again(entry, why)

    def _try_again(self, entry: ShardInfo, why: str) -> None:
        """Discard a damaged copy, which is fetched again once; otherwise raise the error."""
        if not self.storage.discard(entry) or entry.path in self._retried:
            raise self._damaged(entry, why)
        self._retried.add(entry.path)

    def _entry(self, group: int, shard: int) -> ShardInfo:
        return self.manifest.groups[group].shards[shard]

    def _damaged(self, entry: ShardInfo, why: object) -> FormatError:
        file = self.storage.name(entry.path)
        return FormatError(f"shard {file!r} is damaged or incomplete ({why}); {self.storage.remedy}")


def _map(file: KeptFile) -> pa.Buffer:
    """Map the file's bytes, which need no open file."""
    return pa.memory_map(str(file.path)).read_buffer()


_LOOK_AHEAD = 4096
"""Rows in which to look for the next shards."""


def next_shards(rows: RankRows, i: int, num: int) -> list[tuple[int, int]]:
    """List the first `num` shards, as (group, shard), read from row `i` on, within the next 4096 rows."""
    stop = i + _LOOK_AHEAD
    shard = rows.columns["shard"][i:stop].astype(np.int64)
    keys = (rows.columns["group"][i:stop].astype(np.int64) << 32 | shard)[shard >= 0]
    first = np.sort(np.unique(keys, return_index=True)[1])
    return [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in keys[first[:num]]]
