"""Storage of a packed set: a folder, memory-mapped without a copy, or remote storage behind a cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.checksums import find_damage, inside
from packer_cli.format.entries import FileInfo

Verify = Literal["none", "lazy", "full"]
VERIFY: tuple[Verify, ...] = ("none", "lazy", "full")


class KeptFile(Protocol):
    """A file that is mapped; closed once it no longer is."""

    @property
    def path(self) -> Path:
        """Where it is on this machine."""
        ...

    def close(self) -> None:
        """Allow a cache to remove it."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A mapped file that no cache removes."""

    path: Path

    def close(self) -> None:
        """Do nothing."""


class Storage(Protocol):
    """The files of a packed set, by their paths in `hbpack.json`. It pickles; a forked process opens its own files."""

    files_kept: int
    """Most shards that a reader should keep open."""
    is_remote: bool
    verify: Verify
    remedy: str
    """What to do about a damaged file."""

    def name(self, path: str) -> str:
        """A file's full name, for messages."""
        ...

    def read(self, path: str) -> pa.Buffer:
        """Read a small file. Raises OSError."""
        ...

    def open_shard(self, entry: FileInfo, release: Any) -> tuple[pa.NativeFile, KeptFile]:
        """(memory map of a shard, object to keep while it is used). Raises OSError.

        Args:
            release: closes all shards that the caller has open, if there is no room for another.
        """
        ...

    def check_shard(self, entry: FileInfo) -> None:
        """Raise FormatError unless a shard has all the bytes that were written."""
        ...

    def discard(self, entry: FileInfo) -> bool:
        """Remove a damaged copy of a shard; returns False if there are no copies, so that retrying is pointless."""
        ...

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Fetch the shards to read next, in the background."""
        ...

    def stop(self) -> None:
        """Stop fetching in the background, and wait for the shard that is being fetched."""
        ...


class LocalStorage:
    """A folder."""

    files_kept = 32
    is_remote = False
    remedy = "run hbpack write, which rewrites damaged files"

    def __init__(self, root: Path, verify: Verify) -> None:
        self.root = root
        self.verify = verify

    def name(self, path: str) -> str:
        """A path."""
        return str(self.root / path)

    def read(self, path: str) -> pa.Buffer:
        """Map a file."""
        return pa.memory_map(self._inside(path)).read_buffer()

    def _inside(self, path: str) -> str:
        try:
            return str(inside(self.root, path))
        except ValueError as error:
            raise FormatError(str(error)) from None

    def open_shard(self, entry: FileInfo, release: Any) -> tuple[pa.NativeFile, KeptFile]:
        """Map a shard."""
        file = self._inside(entry.path)
        num_bytes = os.stat(file).st_size
        if num_bytes != entry.num_bytes:
            raise FormatError(f"{num_bytes} bytes, hbpack.json says {entry.num_bytes}")
        return pa.memory_map(file), LocalFile(Path(file))

    def check_shard(self, entry: FileInfo) -> None:
        """Check a shard. Price: one read, some GB/s."""
        why = find_damage(self._inside(entry.path), entry.num_bytes, entry.xxh3)
        if why is not None:
            raise FormatError(why)

    def discard(self, entry: FileInfo) -> bool:
        """Return False: there are no copies."""
        return False

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Do nothing: the page cache reads ahead by itself."""

    def stop(self) -> None:
        """Do nothing."""
