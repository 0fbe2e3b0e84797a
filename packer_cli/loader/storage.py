"""Storage of a packed set: a folder, memory-mapped without a copy, or remote storage behind a cache.

A packed set in remote storage (S3 or anything else that fsspec reads), with a cache of shards on each node.
`hbpack.json` and the rank's manifests are read directly. Shards are read through a cache on disk that all processes of
the node share (`packer_cli.remote`). A thread fetches the next shards while the current ones are read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, cast

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.checksums import find_damage, inside
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.entries import FileInfo
from packer_cli.format.folder import SetFolder
from packer_cli.format.manifest import Manifest, parse_manifest
from packer_cli.remote.cache import FileCache, KeptFile
from packer_cli.remote.local import CACHE_BYTES, cached_name, default_cache_dir, filler
from packer_cli.remote.path import RemotePath
from packer_cli.remote.system import is_url, open_system

Verify = Literal["none", "lazy", "full"]


class Storage(SetFolder):
    """The files of a packed set in a folder. It pickles."""

    files_kept = 32
    """Most shards that a reader should keep open."""
    is_remote = False

    def __init__(self, root: Path, verify: Verify) -> None:
        super().__init__(root)
        self.verify = verify

    def open_shard(self, entry: FileInfo, release: Callable[[], None]) -> KeptFile:
        """Open a shard, or this node's copy, which stays until it is closed.

        Raises:
            OSError, ValueError, FormatError: it is missing, has another size, or cannot be fetched as it was written.

        Args:
            release: closes all shards that the caller has open, if there is no room for another.
        """
        file = inside(self.root, entry.path)
        num_bytes = os.stat(file).st_size
        if num_bytes != entry.num_bytes:
            raise FormatError(f"{num_bytes} bytes, hbpack.json says {entry.num_bytes}")
        return KeptFile(file)

    def find_damage(self, entry: FileInfo) -> str | None:
        """Say what is wrong with a shard's bytes; None where they are as written. Price: one read, some GB/s."""
        return find_damage(inside(self.root, entry.path), entry.num_bytes, entry.xxh3)

    def discard(self, entry: FileInfo) -> bool:
        """Remove a damaged copy of a shard; returns False if there are no copies, so that retrying is pointless."""
        return False

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Fetch the shards to read next, in the background; of a folder, the page cache does."""

    def stop(self) -> None:
        """Stop fetching in the background, and wait for the shard that is being fetched."""


class RemoteStorage(Storage):
    """Files below a URL, shards behind a cache; a forked process has threads and locks of its own."""

    files_kept = 8
    is_remote = True

    def __init__(self, url: str, cache: FileCache, verify: Verify, options: dict[str, Any]) -> None:
        open_system(url, options)  # Its errors name the set.
        super().__init__(cast("Path", RemotePath(url, options)), verify)
        self.cache = cache
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wanted: list[FileInfo] = []
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def open_shard(self, entry: FileInfo, release: Callable[[], None]) -> KeptFile:
        """Fetch a shard to the cache if it is not there."""
        self._own()
        return self.cache.open(_cached(entry), entry.num_bytes, self._fill(entry), release)

    def find_damage(self, entry: FileInfo) -> str | None:
        """Find the damage of this node's copy of a shard."""
        with closing(self.open_shard(entry, lambda: None)) as file:
            return find_damage(file.path, entry.num_bytes, entry.xxh3)

    def discard(self, entry: FileInfo) -> bool:
        """Remove a shard from the cache."""
        self.cache.discard(_cached(entry))
        return True

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Fetch shards on a thread, which ends when none are left; replaces those requested before."""
        self._own()
        with self._lock:
            self._wanted = [*entries]
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._fetch_wanted, name="hbpack-prefetch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop prefetching and wait for the thread, if this process started it: threads do not survive a fork."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._wanted = []
            thread = self._thread
        if thread is not None:
            thread.join()

    def _fetch_wanted(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                entry = self._wanted.pop(0)
            try:
                self.cache.fetch(_cached(entry), entry.num_bytes, self._fill(entry))
            except Exception:  # Reading the shard will meet the error again, and report it.
                continue

    def _own(self) -> None:
        """Forget the threads and locks of the process that this one was forked from."""
        if self._pid != os.getpid():
            self._reset()

    def _fill(self, entry: FileInfo) -> Callable[[int], None]:
        return filler(cast("RemotePath", self.root / entry.path), entry.num_bytes, entry.xxh3)


def _cached(entry: FileInfo) -> str:
    return cached_name(entry.xxh3, entry.num_bytes)


def open_set(
    path: str | os.PathLike[str],
    *,
    verify: Verify = "lazy",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    storage_options: dict[str, Any] | None = None,
) -> tuple[Storage, Manifest]:
    """Open the files of the packed set in a folder or at a URL, and its manifest.

    Args: those of `PackedDataset`.

    Raises:
        FormatError: there is none, it is damaged, or this release cannot read it.
    """
    if is_url(path):
        cache = FileCache(default_cache_dir() if cache_dir is None else Path(cache_dir), cache_bytes)
        storage: Storage = RemoteStorage(str(path).rstrip("/"), cache, verify, storage_options or {})
    elif Path(path).is_dir():
        storage = Storage(Path(path), verify)
    else:
        raise FormatError(f"{str(Path(path))!r} is not a folder: name the OUT folder that hbpack pack wrote")
    file = storage.name(MANIFEST_NAME)
    try:
        data = storage.read(MANIFEST_NAME).to_pybytes()
    except FileNotFoundError:
        command = f"write {path}" if os.path.exists(os.path.join(path, PLAN_NAME)) else "pack"
        raise FormatError(
            f"{str(path)!r} holds no hbpack.json, so it is not a packed set, or not a finished one; "
            f"run hbpack {command}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FormatError(f"{file!r} cannot be read ({why}); {storage.remedy}") from None
    return storage, parse_manifest(data, file, storage.remedy, compares=verify != "none")


def choose_pad_token(manifest: Manifest, pad_token_id: int | None) -> int:
    """Choose `pad_token_id`, else the tokenizer's pad token, else its end-of-text token, else 0.

    Raises:
        ConfigError: the vocabulary has no such id.
    """
    size = manifest.tokenizer.vocab_size
    token = manifest.pad_token_id if pad_token_id is None else pad_token_id
    if token < 0 or (size is not None and token >= size):
        rule = "not be negative" if size is None else f"be in the tokenizer's vocabulary, 0 to {size - 1}"
        raise ConfigError(f"pad_token_id is {token}: it must {rule}; give another pad_token_id")
    return int(token)
