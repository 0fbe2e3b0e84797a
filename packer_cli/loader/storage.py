"""Storage of a packed set: a folder, memory-mapped without a copy, or remote storage behind a cache.

A packed set in remote storage (S3 or anything else that fsspec reads), with a cache of shards on each node.
`hbpack.json` and the rank's manifests are read directly. Shards are read through a cache on disk that all processes of
the node share (`packer_cli.remote`). A thread fetches the next shards while the current ones are read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.checksums import inside
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
    """The files of a packed set in a folder, or below a URL, with its shards behind a cache. It pickles."""

    def __init__(self, root: Path, verify: Verify, cache: FileCache | None = None) -> None:
        super().__init__(root)
        self.verify, self.cache = verify, cache
        self.files_kept = 32 if cache is None else 8
        """Most shards that a reader should keep open."""
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wanted: list[FileInfo] = []
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.root, self.verify, self.cache)

    def open_shard(self, entry: FileInfo, release: Callable[[], None]) -> KeptFile:
        """Open a shard, or this node's copy, fetched if it is not there, which stays until it is closed.

        Raises:
            OSError, ValueError, FormatError: it is missing, has another size, or cannot be fetched as it was written.

        Args:
            release: closes all shards that the caller has open, if there is no room for another.
        """
        if self.cache is not None:
            return self.cache.open(*self._copy(entry), release)
        file = inside(self.root, entry.path)
        num_bytes = os.stat(file).st_size
        if num_bytes != entry.num_bytes:
            raise FormatError(f"{num_bytes} bytes, hbpack.json says {entry.num_bytes}")
        return KeptFile(file)

    def discard(self, entry: FileInfo) -> bool:
        """Remove a damaged copy of a shard; returns False if there are no copies, so that retrying is pointless."""
        if self.cache is None:
            return False
        self.cache.discard(self._copy(entry)[0])
        return True

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Fetch shards on a thread, which ends when none are left; replaces those requested before."""
        if self._pid != os.getpid():  # A forked process has threads and locks of its own.
            self._reset()
        with self._lock:
            self._wanted = [*entries]
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._fetch_wanted, name="hbpack-prefetch", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop fetching in the background, and wait for the shard that is being fetched, if by this process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._wanted = []
            thread = self._thread
        if thread is not None:
            thread.join()

    def _fetch_wanted(self) -> None:
        assert self.cache is not None
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                entry = self._wanted.pop(0)
            with suppress(Exception):  # Reading the shard will meet the error again, and report it.
                self.cache.fetch(*self._copy(entry))

    def _copy(self, entry: FileInfo) -> tuple[str, int, Callable[[int], None]]:
        """Return the name and size of a shard in the cache, and what writes it there."""
        fill = filler(cast("RemotePath", self.root / entry.path), entry.num_bytes, entry.xxh3)
        return cached_name(entry.xxh3, entry.num_bytes), entry.num_bytes, fill


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
        ConfigError: it is remote, and its shards leave the tokens in the token store.
    """
    if is_url(path):
        url, options = str(path).rstrip("/"), storage_options or {}
        open_system(url, options)  # Its errors name the set.
        cache = FileCache(default_cache_dir() if cache_dir is None else Path(cache_dir), cache_bytes)
        storage = Storage(cast("Path", RemotePath(url, options)), verify, cache)
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
    manifest = parse_manifest(data, file, storage.remedy, compares=verify != "none")
    if manifest.tokens and storage.cache is not None:
        raise ConfigError(
            f"{str(path)!r} was written with --index-only, so it is read from a local folder; copy it there, or write "
            "it again with hbpack write --no-index-only"
        )
    return storage, manifest


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
