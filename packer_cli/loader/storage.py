"""Where a packed set lies: a folder, memory-mapped without a copy, or remote storage behind a cache (`remote.py`).

`opening.py` tells which.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.checksums import find_damage, inside
from packer_cli.format.manifest import ShardInfo

Verify = Literal["none", "lazy", "full"]
VERIFY: tuple[Verify, ...] = ("none", "lazy", "full")


class Storage(Protocol):
    """The files of a packed set, by the paths that `hbpack.json` gives them. It pickles; a fork opens its own."""

    files_kept: int
    """Shards that a reader should keep open, at most."""
    is_remote: bool
    verify: Verify
    remedy: str
    """What helps where a file is damaged."""

    def name(self, path: str) -> str:
        """A file's full name, for messages."""
        ...

    def read(self, path: str) -> pa.Buffer:
        """A small file. Raises OSError."""
        ...

    def open_shard(self, entry: ShardInfo, release: Any) -> tuple[pa.NativeFile, Any]:
        """(memory map, what to keep as long as that is used) of a shard of `hbpack.json`. Raises OSError.

        Args:
            release: closes all shards that the caller has open, where there is no room for another.
        """
        ...

    def check_shard(self, entry: ShardInfo) -> None:
        """Raise FormatError where a shard has not all the bytes that were written."""
        ...

    def discard(self, entry: ShardInfo) -> bool:
        """Forget a copy that proved damaged; whether there was one, so that another try makes sense."""
        ...

    def prefetch(self, entries: list[ShardInfo]) -> None:
        """Fetch shards that are read next, in the background."""
        ...

    def stop(self) -> None:
        """Fetch nothing more in the background; wait for the shard that is on its way."""
        ...


class LocalStorage:
    """A folder."""

    files_kept = 32
    is_remote = False
    remedy = "run hbpack write, which rewrites what is damaged"

    def __init__(self, root: Path, verify: Verify) -> None:
        self.root = root
        self.verify = verify

    def name(self, path: str) -> str:
        """A path."""
        return str(self.root / path)

    def read(self, path: str) -> pa.Buffer:
        """Memory-mapped."""
        return pa.memory_map(self._inside(path)).read_buffer()

    def _inside(self, path: str) -> str:
        try:
            return str(inside(self.root, path))
        except ValueError as error:
            raise FormatError(str(error)) from None

    def open_shard(self, entry: ShardInfo, release: Any) -> tuple[pa.NativeFile, Any]:
        """Nothing needs to be kept."""
        file = self._inside(entry.path)
        num_bytes = os.stat(file).st_size
        if num_bytes != entry.num_bytes:
            raise FormatError(f"{num_bytes} bytes, hbpack.json says {entry.num_bytes}")
        return pa.memory_map(file), None

    def check_shard(self, entry: ShardInfo) -> None:
        """Price: one read, some GB/s."""
        why = find_damage(self._inside(entry.path), entry.num_bytes, entry.xxh3)
        if why is not None:
            raise FormatError(why)

    def discard(self, entry: ShardInfo) -> bool:
        """There is no copy."""
        return False

    def prefetch(self, entries: list[ShardInfo]) -> None:
        """The page cache reads ahead by itself."""

    def stop(self) -> None:
        """Nothing is fetched."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path names remote storage, as `s3://bucket/out` does."""
    return "://" in str(path)
