"""Reads packs from memory-mapped shards, as views without copies.

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

import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.checksums import require_damage
from packer_cli.format.entries import GroupInfo, PartInfo, ShardInfo
from packer_cli.format.marks import find_foreign
from packer_cli.format.shards import IndexFile, Pack, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.loader.storage import KeptFile, Storage

__all__ = ["Pack", "ShardReader"]


class _Open:
    """An open shard, and which of its rows have been compared with their checksums."""

    def __init__(self, file: ShardFile, kept: KeptFile, entry: ShardInfo, is_checked: bool) -> None:
        self._file = file
        self._kept = kept
        self._num_bytes = entry.num_bytes
        self._first_pack = entry.first_pack
        self._is_checked = bytearray([is_checked]) * entry.num_packs

    def read(self, row: int) -> Pack:
        """The pack in a row. Raises FormatError if there is none, or not the one that was written."""
        if row >= len(self._is_checked):
            raise FormatError(f"no row {row}")
        if not self._is_checked[row]:
            self._require_whole()
        pack = self._file.read(row)
        if pack is None:
            raise FormatError(f"no row {row}")
        if pack.pack_id != self._first_pack + row:
            raise FormatError(f"row {row} holds pack {pack.pack_id}, not {self._first_pack + row}")
        if not self._is_checked[row]:
            self._file.check(row)
            self._is_checked[row] = True
        return pack

    def _require_whole(self) -> None:
        """Reading what was cut off from a mapped file would end the process with SIGBUS."""
        with suppress(FileNotFoundError):  # Then the mapping stays whole.
            num_bytes = os.stat(self._kept.path).st_size
            if num_bytes < self._num_bytes:
                raise FormatError(
                    f"cut short to {num_bytes} bytes while it was open, hbpack.json says {self._num_bytes}"
                )

    def close(self) -> None:
        """Allow a cache to remove the shard."""
        self._kept.close()


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not safe for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(
        self, storage: Storage, groups: tuple[GroupInfo, ...], fingerprint: str, tokens: tuple[PartInfo, ...] = ()
    ) -> None:
        """Opens nothing yet.

        Args:
            groups: from `hbpack.json`.
            fingerprint: of the set as planned.
            tokens: the parts of the token store, where the shards leave the tokens there.
        """
        self.storage = storage
        self.groups = groups
        self.fingerprint = fingerprint
        self.tokens = tokens
        is_weighted = any(group.loss_weight is not None for group in groups)
        self._parts = TokenParts(self._open_part, [part.num_samples for part in tokens], is_weighted=is_weighted)
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._retried: set[str] = set()
        self._files: OrderedDict[tuple[int, int], _Open] = OrderedDict()

    def close(self) -> None:
        """Close all shards; reading opens them again."""
        for key in [*self._files]:
            self._close(key)

    def _close(self, key: tuple[int, int]) -> None:
        self._files.pop(key).close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("storage", "groups", "fingerprint", "tokens")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, group: int, shard: int, row: int) -> Pack:
        """The pack in `row` of shard number `shard` of group number `group`.

        Raises:
            FormatError: the shard is missing, or does not match the manifest.
        """
        if self._pid != os.getpid():
            self._forget()
        key = (group, shard)
        opened = self._files.get(key)
        if opened is None:
            while len(self._files) >= self.storage.files_kept:
                self._close(next(iter(self._files)))
            opened = self._files[key] = self._open(group, shard)
        else:
            self._files.move_to_end(key)
        try:
            return opened.read(row)
        except FormatError as error:
            self._close(key)
            self._try_again(group, shard, str(error))
        return self.read(group, shard, row)

    def is_open(self, group: int, shard: int) -> bool:
        """Whether a shard is open."""
        return (group, shard) in self._files and self._pid == os.getpid()

    def check_all(self) -> None:
        """Check every shard of the set and every part of the token store that they need, and open each shard."""
        for part in self.tokens:
            try:
                self.storage.check_shard(part)
            except (OSError, FormatError) as error:
                require_damage(error)
                name = self.storage.name(part.path)
                raise FormatError(f"token store part {name!r} is damaged ({error}); run hbpack pack again") from None
        for group, entry in enumerate(self.groups):
            for shard, item in enumerate(entry.shards):
                try:
                    self.storage.check_shard(item)
                except (OSError, FormatError) as error:
                    require_damage(error)
                    raise self._damaged(group, shard, str(error)) from None
                self._open(group, shard).close()

    def prefetch(self, places: list[tuple[int, int]]) -> None:
        """Fetch shards, as (group, shard), in the background."""
        self.storage.prefetch([self._entry(*place) for place in places])

    def _open(self, group: int, shard: int) -> _Open:
        entry = self._entry(group, shard)
        is_checked = self.storage.verify == "none"
        while True:
            try:
                source, kept = self.storage.open_shard(entry, self.close)
            except (OSError, FormatError) as error:
                require_damage(error)
                raise self._damaged(group, shard, str(error)) from None
            try:
                file = IndexFile(source, self._parts) if self.tokens else ShardFile(source)
                foreign = find_foreign(file.schema, self.fingerprint, entry.path)
                if foreign is None:
                    return _Open(file, kept, entry, is_checked)
                why = foreign
            except (OSError, FormatError, pa.ArrowException, UnicodeDecodeError) as error:
                require_damage(error)
                why = str(error)
            kept.close()
            self._try_again(group, shard, why)

    def _try_again(self, group: int, shard: int, why: str) -> None:
        """Discard a damaged copy, once, so that it is fetched again; otherwise raise the error."""
        entry = self._entry(group, shard)
        if entry.path in self._retried or not self.storage.discard(entry):
            raise self._damaged(group, shard, why)
        self._retried.add(entry.path)

    def _open_part(self, number: int) -> pa.NativeFile:
        return self.storage.open_shard(self.tokens[number], self.close)[0]

    def _entry(self, group: int, shard: int) -> ShardInfo:
        return self.groups[group].shards[shard]

    def _damaged(self, group: int, shard: int, why: str) -> FormatError:
        file = self.storage.name(self._entry(group, shard).path)
        return FormatError(f"shard {file!r} is damaged or incomplete ({why}); {self.storage.remedy}")
