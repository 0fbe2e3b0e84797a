"""Storage of a packed set, and the packs in its shards, read from memory-mapped files as views without copies.

The set lies in a folder, or in remote storage (S3 or anything else that fsspec reads), with a cache of shards on each
node. `hbpack.json` and the rank's manifests are read directly. Shards are read through a cache on disk that all
processes of the node share (`packer_cli.remote`). A thread fetches the next shards while the current ones are read.

Price: opening a shard takes about a millisecond; then a pack is four slices of the file, 4 us, or 10 us for the first
of its record batch (16 packs). Views use no memory beyond the page cache, so memory stays flat however many packs are
read.

Each row has its own checksum, which is compared when the row is first read from an open shard. So a rank pays only for
the packs that it reads, some 10 us for 16K tokens, not for whole shards, of which it needs little if there are many
ranks; and damage to a shard after it was opened is found too.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch.distributed as dist
from torch.utils.data import get_worker_info

from packer_cli.errors import ConfigError, FormatError, InputError, fault_of
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import CURRENT, MANIFEST_NAME, PLAN_NAME
from packer_cli.format.entries import FileInfo, ShardInfo
from packer_cli.format.manifest import Manifest, SetFolder, parse_manifest
from packer_cli.format.ranks import RankRow, RankRows
from packer_cli.format.schema import find_foreign
from packer_cli.format.shards import Pack, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.format.versions import set_at
from packer_cli.loader.build_batch import NO_PACK
from packer_cli.remote.file_cache import FileCache, KeptFile, keep
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
        self._version = None if isinstance(root, RemotePath) else keep(root / MANIFEST_NAME)
        """The manifest of the version; `hbpack prune` leaves a version that is kept."""
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
        self._schema = manifest.schema
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
                raise FormatError(f"token store part {name!r} {fault_of(why)}; run hbpack pack again")
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
                file = ShardFile(source, self._schema, self._parts if self.manifest.tokens else None)
                why: object = find_foreign(file.schema, self.manifest.planned_fingerprint, entry.path)
                if why is None:
                    return _Open(file, kept, entry, is_checked=self.storage.verify == "none")
            except (OSError, FormatError, pa.ArrowException) as error:
                require_damage(error)
                why = error
            kept.close()
            self._try_again(entry, why)

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


_LOOK_AHEAD = 4096
"""Rows in which to look for the next shards."""


def next_shards(rows: RankRows, i: int, num: int) -> list[tuple[int, int]]:
    """List the first `num` shards, as (group, shard), read from row `i` on, within the next 4096 rows."""
    stop = i + _LOOK_AHEAD
    shard = rows.columns["shard"][i:stop].astype(np.int64)
    keys = (rows.columns["group"][i:stop].astype(np.int64) << 32 | shard)[shard >= 0]
    first = np.sort(np.unique(keys, return_index=True)[1])
    return [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in keys[first[:num]]]
