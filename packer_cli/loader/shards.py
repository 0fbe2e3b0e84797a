"""Read packs out of memory-mapped shards: views, no copies.

Price: opening a shard costs about a millisecond once; then a pack is four slices of the file, 4 us, or 10 us where it
is the first of its record batch (16 packs). Views hold no memory of their own beyond the page cache, so memory stays
flat however many packs are read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.loader.ipc import Pack, ShardFile
from packer_cli.loader.storage import Storage

__all__ = ["Pack", "ShardReader"]


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(self, storage: Storage, groups: list[dict[str, Any]]) -> None:
        self.storage = storage
        self.groups = groups
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._retried: set[str] = set()
        self._files: OrderedDict[tuple[int, int], tuple[ShardFile, Any]] = OrderedDict()

    def close(self) -> None:
        """Forget all that is open; reading goes on with opening it again."""
        for key in [*self._files]:
            self._close(key)

    def _close(self, key: tuple[int, int]) -> None:
        _, kept = self._files.pop(key)
        if kept is not None:
            kept.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"storage": self.storage, "groups": self.groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, group: int, shard: int, row: int) -> Pack:
        """The pack in `row` of shard number `shard` of group number `group`.

        Raises FormatError where the shard is missing, or not as the manifest says.
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
            pack = opened[0].read(row)
        except FormatError as error:
            raise self._damaged(group, shard, str(error)) from None
        if pack is None:
            raise self._damaged(group, shard, f"no row {row}")
        return pack

    def is_open(self, group: int, shard: int) -> bool:
        """Whether a shard is open already."""
        return (group, shard) in self._files and self._pid == os.getpid()

    def check_all(self) -> None:
        """Open every shard of the set once, which checks it as the storage was told to."""
        for group, entry in enumerate(self.groups):
            for shard in range(len(entry["shards"])):
                _, kept = self._open(group, shard)
                if kept is not None:
                    kept.close()

    def prefetch(self, places: list[tuple[int, int]]) -> None:
        """Fetch shards, as (group, shard), in the background."""
        self.storage.prefetch([self._entry(*place) for place in places])

    def _open(self, group: int, shard: int) -> tuple[ShardFile, Any]:
        entry = self._entry(group, shard)
        while True:
            try:
                source, kept = self.storage.open_shard(entry, self.close)
            except (OSError, FormatError) as error:
                raise self._damaged(group, shard, str(error)) from None
            try:
                return ShardFile(source), kept
            except (OSError, FormatError, pa.ArrowInvalid) as error:
                why = str(error)
            if kept is not None:
                kept.close()
            # A copy that went wrong is fetched again, once.
            if entry["path"] in self._retried or not self.storage.discard(entry):
                raise self._damaged(group, shard, why)
            self._retried.add(entry["path"])

    def _entry(self, group: int, shard: int) -> dict[str, Any]:
        try:
            return self.groups[group]["shards"][shard]
        except IndexError:
            raise FormatError(
                f"hbpack.json lists no shard {shard} of group {group}, which a rank manifest names; "
                "run hbpack pack again"
            ) from None

    def _damaged(self, group: int, shard: int, why: str) -> FormatError:
        file = self.storage.name(self._entry(group, shard)["path"])
        return FormatError(f"shard {file!r} is damaged or incomplete ({why}); {self.storage.remedy}")
