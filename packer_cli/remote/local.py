"""Remote objects as files of this node, to be memory-mapped: copies in a cache of limited size; old files go first.

A copy's name is the checksum of its contents, so that a set that was moved or rebalanced is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import xxhash

from packer_cli.errors import FormatError, RemoteError
from packer_cli.remote.file import LARGEST_BLOCK
from packer_cli.remote.file_cache import FileCache, KeptFile, write_at
from packer_cli.remote.path import RemotePath, version_of
from packer_cli.remote.system import ObjectInfo

BLOCK = 32 * 2**20
"""Bytes per request, which a failure may waste."""
CACHE_BYTES = 64 * 2**30
"""Default size of a cache."""


def default_cache_dir() -> Path:
    """Return `$HBPACK_CACHE`, else `hbpack` in the user's cache folder.

    Raises:
        OSError: the user has no home.
    """
    if "HBPACK_CACHE" in os.environ:
        return Path(os.environ["HBPACK_CACHE"])
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hbpack"
    except RuntimeError:
        raise OSError("the user has no home folder for a cache; name one: export HBPACK_CACHE=FOLDER") from None


def cached_name(xxh3: str, num_bytes: int) -> str:
    """Return the name of a file in a cache."""
    return f"{xxh3}-{num_bytes}.arrow"


def is_in_cache(num_bytes: int, xxh3: str) -> bool:
    """Whether this node has a copy of a remote file."""
    return (default_cache_dir() / cached_name(xxh3, num_bytes)).exists()


def filler(path: RemotePath, num_bytes: int, xxh3: str | None) -> Callable[[int], None]:
    """Return a function that fetches an object for a `FileCache`.

    A fetch whose bytes are not the expected ones is repeated once; then it raises FormatError.
    """

    def fill(descriptor: int) -> None:
        try:
            _download(path, num_bytes, xxh3, descriptor)
        except FormatError:
            _download(path, num_bytes, xxh3, descriptor)

    return fill


def local_file(path: Path | RemotePath, num_bytes: int | None = None, xxh3: str | None = None) -> Path:
    """Return the file itself, or this node's copy of a remote one.

    The copy may be dropped from the cache later; a memory map of it stays.

    Args:
        num_bytes, xxh3: size and checksum that the file should have, where known; checked for a remote file alone.

    Raises:
        FileNotFoundError: the object is missing.
        OSError: the object has another size or checksum.
    """
    with closing(_open_copy(path, num_bytes, xxh3)) as copy:
        return copy.path


def map_file(path: Path | RemotePath, num_bytes: int | None = None, xxh3: str | None = None) -> Any:
    """Map `local_file` into memory (`pa.NativeFile`); raise its errors, too."""
    import pyarrow as pa

    with closing(_open_copy(path, num_bytes, xxh3)) as copy:
        return pa.memory_map(str(copy.path))


def find_copy(path: RemotePath, version: ObjectInfo, *, fetch: bool = False) -> KeptFile | None:
    """Open this node's copy of a version of an object; return None if there is none.

    Args:
        version: size and ETag, which reads can name.
        fetch: make the copy, unless it would take a quarter of the cache, half of the room on its disk, or the last
            fifth of that disk.

    Raises:
        RunError: the object is no longer of this version.
    """
    num_bytes = int(version["size"])
    name = cached_name(xxhash.xxh3_128_hexdigest(f"{path} {version['ETag']}".encode()), num_bytes)

    def fill(descriptor: int) -> None:
        with (
            path.open_ranges(goes_forward=True, listed=version) as raw,
            open(descriptor, "wb", closefd=False) as file,
        ):
            shutil.copyfileobj(raw, file, LARGEST_BLOCK)

    with suppress(OSError, RemoteError):  # Whoever reads the object itself says what is wrong with it.
        cache = FileCache(default_cache_dir(), CACHE_BYTES)
        if fetch and 4 * num_bytes < CACHE_BYTES:
            cache.folder.mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(cache.folder)
            if num_bytes < min(disk.free // 2, disk.free - disk.total // 5):
                cache.fetch(name, num_bytes, fill)
        return cache.find(name, num_bytes)
    return None


_compared: set[str] = set()
"""Names of the copies that this process has compared with their checksum."""


def _open_copy(path: Path | RemotePath, num_bytes: int | None, xxh3: str | None) -> KeptFile:
    """Open this node's copy of a remote file, or the file itself.

    A copy is compared with its checksum, once a process, and fetched again if need be.
    """
    if not isinstance(path, RemotePath):
        return KeptFile(path)
    size = path.stat().st_size if num_bytes is None else num_bytes
    # Without a checksum: one of the address and of what the storage says of this version.
    name = cached_name(xxh3 or xxhash.xxh3_128_hexdigest(f"{path} {version_of(path.info())}".encode()), size)
    cache = FileCache(default_cache_dir(), CACHE_BYTES)
    fill = filler(path, size, xxh3)
    try:
        copy = cache.open(name, size, fill)
        if xxh3 is not None and name not in _compared and _checksum(copy.path) != xxh3:
            cache.discard(name)
            copy.close()
            copy = cache.open(name, size, fill)
    except FormatError as error:
        raise OSError(str(error)) from None
    _compared.add(name)
    return copy


def _checksum(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def open_source(path: Path | RemotePath, *, goes_forward: bool = False, listed: ObjectInfo | None = None) -> Any:
    """Open a file for pyarrow (`pa.NativeFile`): a memory map, or of a remote file the ranges that are read.

    Args:
        goes_forward: whether most of the file is read, in order.
        listed: the version of a remote file, see `RemotePath.open_ranges`.
    """
    import pyarrow as pa

    if isinstance(path, RemotePath):
        return pa.PythonFile(path.open_ranges(goes_forward=goes_forward, listed=listed), mode="r")
    return pa.memory_map(str(path))


def _download(path: RemotePath, num_bytes: int, xxh3: str | None, descriptor: int) -> None:
    """Fetch an object; raise FormatError unless it is as it was written, since sets share the cache."""
    found = path.stat().st_size
    if found != num_bytes:
        raise FormatError(f"{found} bytes, hbpack.json says {num_bytes}")
    digest = xxhash.xxh3_128()
    for start in range(0, num_bytes, BLOCK):
        stop = min(start + BLOCK, num_bytes)
        data = path.read_range(start, stop)
        write_at(descriptor, data, start)
        digest.update(data)
    if xxh3 is not None and digest.hexdigest() != xxh3:
        raise FormatError(f"its checksum is {digest.hexdigest()}, hbpack.json says {xxh3}")
