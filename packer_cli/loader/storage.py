"""Storage of a packed set.

The set lies in a folder, or in remote storage (S3 or anything else that fsspec reads), with a cache of shards on each
node. `hbpack.json` and the rank's manifests are read directly. Shards are read through a cache on disk that all
processes of the node share (`packer_cli.remote`): whole, or those ranges that the node's ranks need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch.distributed as dist
from torch.utils.data import get_worker_info

from packer_cli.errors import ConfigError, FormatError, InputError
from packer_cli.format.checksums import inside
from packer_cli.format.constants import CURRENT, MANIFEST_NAME, PLAN_NAME
from packer_cli.format.entries import FileInfo
from packer_cli.format.manifest import Manifest, SetFolder, parse_manifest
from packer_cli.format.versions import set_at
from packer_cli.remote.file_cache import FileCache, KeptFile, keep
from packer_cli.remote.local import CACHE_BYTES, cached_name, default_cache_dir, filler
from packer_cli.remote.path import RemotePath
from packer_cli.remote.ranged_copy import RangedCopy, ranges_name
from packer_cli.remote.system import is_url, open_system

Verify = Literal["none", "lazy", "full"]


class Storage(SetFolder):
    """The files of a packed set in a folder, or below a URL, with its shards behind a cache. It pickles."""

    def __init__(self, root: Path, verify: Verify, cache: FileCache | None = None) -> None:
        super().__init__(root)
        self.verify, self.cache = verify, cache
        self.files_kept = 32 if cache is None else 8
        """Most shards that a reader should keep open."""
        self._version = None if isinstance(root, RemotePath) else keep(root / MANIFEST_NAME)
        """The manifest of the version; `hbpack prune` leaves a version that is kept."""

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

    def open_ranges(self, entry: FileInfo) -> KeptFile | RangedCopy:
        """Open this node's whole copy of a remote shard if it has one, else its copy of ranges."""
        assert self.cache is not None
        name, num_bytes, _ = self._copy(entry)
        path = cast("RemotePath", self.root / entry.path)
        return self.cache.find(name, num_bytes) or RangedCopy(self.cache, path, num_bytes, entry.xxh3)

    def discard(self, entry: FileInfo) -> bool:
        """Remove damaged copies of a shard; returns False if there are no copies, so that retrying is pointless."""
        if self.cache is None:
            return False
        for name in (self._copy(entry)[0], ranges_name(entry.xxh3, entry.num_bytes)):
            self.cache.discard(name)
        return True

    def fetch(self, entry: FileInfo) -> None:
        """Fetch a whole remote shard, unless there is no room."""
        assert self.cache is not None
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
        root = cast("Path", RemotePath(url, options))
    else:
        root, cache = Path(path), None
    try:
        root = _choose_version(root)
    except InputError as error:
        raise FormatError(str(error)) from None
    storage = Storage(root, verify, cache)
    if cache is None and not root.is_dir():
        raise FormatError(f"{str(root)!r} is not a folder: name the OUT folder that hbpack pack wrote")
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


def _choose_version(path: Path) -> Path:
    """Find the folder with the files of the set that a path names: of the same version in all processes of a run.

    The first process that opens a set notes its version in the store of torch.distributed, where the others find it;
    nobody waits. A worker of a DataLoader asks nobody: a forked one shares its parent's connection to the store.

    Raises:
        FormatError: the version that another process reads is not there for this one.
        InputError: the set has no such version.
    """
    found = set_at(path)
    if found == path:  # OUT/current will lead elsewhere.
        return path.resolve() if isinstance(path, Path) and CURRENT in path.parts else path
    version = found if found.parent == path else found.parent  # Which has the validation set.
    is_current = path in (version.parent, version.parent / found.name)
    has_store = dist.is_available() and dist.is_initialized() and dist.get_backend() not in ("fake", "mpi")
    if not is_current or not has_store or get_worker_info() is not None:
        return found
    store = dist.distributed_c10d._get_default_store()
    name = store.compare_set(f"hbpack/{version.parent}", "", version.name).decode()
    agreed = version.with_name(name) / found.relative_to(version)
    if name != version.name and not (agreed / MANIFEST_NAME).exists():
        raise FormatError(
            f"{str(agreed)!r}, which other processes of the run read, is not here: give all the same files"
        )
    return agreed


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
