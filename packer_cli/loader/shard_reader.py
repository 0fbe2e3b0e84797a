"""The packs in the shards of a set, read from memory-mapped files as views without copies.

Price: opening a shard takes about a millisecond; then a pack is four slices of the file, 4 us, or 10 us for the first
of its record batch (16 packs). Views use no memory beyond the page cache, so memory stays flat however many packs are
read.

Each row has its own checksum, which is compared when the row is first read from an open shard. So a rank pays only for
the packs that it reads, some 10 us for 16K tokens, not for whole shards, of which it needs little if there are many
ranks; and damage to a shard after it was opened is found too. Of remote shards, too, only these rows are fetched, each
as the part of its record batch before the tokens, and its tokens, unless this node reads most of a shard.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import MISSING, FormatError, fault_of
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.entries import ShardInfo
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import RankRow, RankRows
from packer_cli.format.schema import find_foreign
from packer_cli.format.shards import BLOCK_BYTES, Pack, ShardFile, footer_size
from packer_cli.format.token_parts import TokenParts
from packer_cli.loader.build_batch import NO_PACK
from packer_cli.loader.read_ahead import Place, ReadAhead
from packer_cli.loader.storage import Storage
from packer_cli.remote.file_cache import KeptFile
from packer_cli.remote.ranged_copy import RangedCopy

_IDENTITY_BYTES = 1024
"""More than the identity of a shard takes in its footer."""


class _Open:
    """An open shard, and which of its rows have been compared with their checksums."""

    def __init__(self, file: ShardFile, kept: KeptFile | RangedCopy, entry: ShardInfo, *, is_checked: bool) -> None:
        self._file, self._entry = file, entry
        self.copy = kept if isinstance(kept, RangedCopy) else None
        self._path = kept.path
        self._is_checked = bytearray([is_checked and self.copy is None]) * entry.num_packs
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
            self._require_tokens(pack)
            self._file.check(row, pack)
            self._is_checked[row] = True
        return pack

    def fetch(self, rows: Sequence[int]) -> None:
        """Fetch rows of a shard of which this node has ranges, those that lie near each other in one request."""
        self._require_tokens(*[pack for row in rows if (pack := self._file.read(row)) is not None])

    def _require_tokens(self, *packs: Pack) -> None:
        if self.copy is not None:
            begins = [_address(pack.input_ids) - self.copy.data.address for pack in packs]
            sizes = [pack.input_ids.nbytes for pack in packs]
            try:
                self.copy.require(*[(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)])
            except FileNotFoundError:
                raise FormatError(MISSING) from None

    def _require_whole(self) -> None:
        """Require that nothing is cut off: reading that from a mapped file would end the process with SIGBUS."""
        with suppress(FileNotFoundError):  # Then the mapping stays whole.
            num_bytes = os.stat(self._path).st_size
            if num_bytes < self._entry.num_bytes:
                raise FormatError(
                    f"cut short to {num_bytes} bytes while it was open, hbpack.json says {self._entry.num_bytes}"
                )


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not safe for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        """Open nothing yet."""
        self.storage, self.manifest = storage, manifest
        self._schema = manifest.schema
        self._parts = TokenParts(
            lambda part: _map(storage.open_shard(part, self._close)), manifest.tokens, is_weighted=manifest.is_weighted
        )
        self._heads: dict[str, int] = {}
        """Bytes of a record batch before its tokens, as found last in each folder of shards."""
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._retried: set[str] = set()
        self._files: OrderedDict[Place, _Open] = OrderedDict()
        cache = self.storage.cache
        self._ahead = None if cache is None else ReadAhead(self.manifest, self._fetch, cache.max_bytes)

    def close(self) -> None:
        """Close all shards, and wait for what is being fetched; reading opens them again."""
        if self._ahead is not None and self._pid == os.getpid():
            self._ahead.stop()
        self._close()

    def _close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardReader, (self.storage, self.manifest)

    def read_row(self, rows: RankRows, number: int) -> tuple[RankRow, Pack]:
        """Read row `number` of a rank, and its pack, or that of a filler; fetch what follows of a remote set.

        Raises:
            FormatError: as `read`.
        """
        row = rows.row(number)
        if row.shard < 0:
            return row, NO_PACK
        if self._pid != os.getpid():
            self._forget()
        if self._ahead is None:
            return row, self.read(row.group, row.shard, row.row)
        place = (row.group, row.shard)
        self._ahead.enter(rows)
        is_new = place not in self._files
        pack = self.read(*place, row.row, in_ranges=row.group not in self._ahead.whole)
        copy = self._files[place].copy
        self._ahead.follow(number, self._files, is_new=is_new, has_waited=copy is not None and copy.take_waited())
        return row, pack

    def read(self, group: int, shard: int, row: int, *, in_ranges: bool = False) -> Pack:
        """Read the pack in `row` of shard number `shard` of group number `group`.

        Args:
            in_ranges: fetch only that of a remote shard, unless the shard is open or this node has a whole copy.

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
            # Of ranges only the last copy of a group stays open, so that the cache need not drop what was read ahead.
            for other in [place for place, each in self._files.items() if place[0] == group and each.copy is not None]:
                self._files.pop(other).close()
            opened = self._files[key] = self._open(self._entry(group, shard), in_ranges=in_ranges)
        else:
            self._files.move_to_end(key)
        try:
            return opened.read(row)
        except FormatError as error:
            self._files.pop(key).close()
            self._try_again(self._entry(group, shard), str(error))
        return self.read(group, shard, row, in_ranges=in_ranges)

    def check_all(self) -> None:
        """Check every shard of the set and every part of the token store that they need, and open each shard."""
        for part in self.manifest.tokens:
            try:
                why = find_damage(inside(self.storage.root, part.path), part.num_bytes, part.xxh3)
            except ValueError as error:
                why = str(error)
            if why is not None:
                name = self.storage.name(part.path)
                raise FormatError(f"token store part {name!r} {fault_of(why)}; run hbpack pack again")
        for entry in self.manifest.shards:
            self._open(entry, is_whole_checked=True).close()

    def _open(self, entry: ShardInfo, *, in_ranges: bool = False, is_whole_checked: bool = False) -> _Open:
        while True:
            kept: KeptFile | RangedCopy
            try:
                kept = self.storage.open_ranges(entry) if in_ranges else self.storage.open_shard(entry, self._close)
            except (OSError, ValueError, FormatError) as error:
                require_damage(error)
                raise self._damaged(entry, error) from None
            try:
                if is_whole_checked and (damage := find_damage(kept.path, entry.num_bytes, entry.xxh3)):
                    raise FormatError(damage)
                return self._read_footer(entry, kept)
            except (OSError, FormatError, pa.ArrowException) as error:
                require_damage(error)
                why = error
            kept.close()
            self._try_again(entry, why)

    def _read_footer(self, entry: ShardInfo, kept: KeptFile | RangedCopy) -> _Open:
        """Open what was opened as a file. Raises OSError, pa.ArrowException or FormatError unless it is this shard."""
        require = self._fetch_footer(entry, kept) if isinstance(kept, RangedCopy) else None
        source = pa.BufferReader(kept.data if isinstance(kept, RangedCopy) else _map(kept))
        file = ShardFile(source, self._schema, self._parts if self.manifest.tokens else None, require)
        why = find_foreign(file.schema, self.manifest.planned_fingerprint, entry.path)
        if why is not None:
            raise FormatError(why)
        return _Open(file, kept, entry, is_checked=self.storage.verify == "none")

    def _fetch_footer(self, entry: ShardInfo, copy: RangedCopy) -> Callable[[int, int], None]:
        """Fetch the footer of a shard; return what fetches the beginnings of its record batches."""
        num_batches = -(-entry.num_packs // PACKS_PER_BATCH)
        likely = self._schema.serialize().size + BLOCK_BYTES * num_batches + _IDENTITY_BYTES
        copy.require((entry.num_bytes - likely, entry.num_bytes))
        copy.require((entry.num_bytes - footer_size(memoryview(copy.data)), entry.num_bytes))
        folder = os.path.dirname(entry.path)

        def require(begin: int, end: int) -> None:
            likely = self._heads.get(folder, 0)
            if not copy.has(begin, end):
                copy.require((begin, max(end, begin + likely)))
            self._heads[folder] = max(end - begin, likely * 15 // 16)

        return require

    def _fetch(self, place: Place, rows: list[int] | None) -> None:
        """Fetch a remote shard, or some rows of one."""
        entry = self._entry(*place)
        if rows is None:
            self.storage.fetch(entry)
            return
        with closing(self.storage.open_ranges(entry)) as kept:
            if isinstance(kept, RangedCopy):
                self._read_footer(entry, kept).fetch(rows)

    def _try_again(self, entry: ShardInfo, why: object) -> None:
        """Discard a damaged copy, which is fetched again once; otherwise raise the error."""
        if not self.storage.discard(entry) or entry.path in self._retried:
            raise self._damaged(entry, why)
        self._retried.add(entry.path)

    def _entry(self, group: int, shard: int) -> ShardInfo:
        return self.manifest.groups[group].shards[shard]

    def _damaged(self, entry: ShardInfo, why: object) -> FormatError:
        file = self.storage.name(entry.path)
        return FormatError(f"shard {file!r} {fault_of(why)}; {self.storage.remedy}")


def _map(file: KeptFile) -> pa.Buffer:
    """Map the file's bytes, which need no open file."""
    return pa.memory_map(str(file.path)).read_buffer()


def _address(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])
