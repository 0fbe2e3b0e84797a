"""Remote objects as files of this node, to be memory-mapped: copies in a cache of limited size; old files go first.

A copy's name is the checksum of its contents, so that a set that was moved or rebalanced is not fetched again.

All processes of the node may share one folder. A file is written under a temporary name and renamed when complete. The
process that fetches it holds a lock, so that others wait instead of fetching it too; a process that reads it holds a
shared lock, so that nobody removes it. The locks are `flock`, so they end with the process, however it ends. The time
of a file's last use is its modification time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from packer_cli.errors import FormatError, RemoteError
from packer_cli.remote.file import LARGEST_BLOCK
from packer_cli.remote.path import RemotePath, version_of
from packer_cli.remote.system import ObjectInfo

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART = ".part"
_POLL_SECONDS = 0.02
"""Seconds between checks of a file that another process is fetching."""
_QUIET_SECONDS = 600
"""Seconds from a warning to the next one."""


class KeptFile:
    """A file that stays in the cache until this is closed or garbage-collected; without a cache, in any case."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self._close = None if descriptor is None else weakref.finalize(self, _close, descriptor, os.getpid())

    def close(self) -> None:
        """Allow the cache to remove the file."""
        if self._close is not None:
            self._close()


def keep(path: Path) -> KeptFile:
    """Keep a local file: whoever would remove it asks `is_kept`. Without locks on its disk, it is not kept."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        _lock(descriptor, fcntl.LOCK_SH)
    return KeptFile(path, descriptor)


def is_kept(path: Path) -> bool:
    """Whether a process on any node keeps a local file."""
    may_write = os.access(path, os.W_OK)  # NFS locks nothing exclusively that is open for reading alone.
    try:
        descriptor = os.open(path, os.O_RDWR if may_write else os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        _close(descriptor)


class FileCache:
    """A folder of files. Stays within `max_bytes`, unless the files being read need more; then it warns.

    Price: lists the folder each time that it fetches a file.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    def open(
        self, name: str, num_bytes: int, fill: Callable[[int], None], release: Callable[[], None] | None = None
    ) -> KeptFile:
        """Open the file with this name and size; fetch the file if it is not there.

        Args:
            fill: writes the file to a descriptor; if it raises, nothing is kept.
            release: closes files that this process does not need, if there is no room.
        """
        path = self.folder / name
        while True:
            descriptor = self._open_shared(path, num_bytes)
            if descriptor is not None:
                with suppress(OSError):
                    os.utime(path)
                return KeptFile(path, descriptor)
            self._fetch(path, num_bytes, fill, release or (lambda: None), needed=True)

    def fetch(self, name: str, num_bytes: int, fill: Callable[[int], None]) -> None:
        """Fetch a file that will be needed soon, unless it is there or there is no room."""
        if not (self.folder / name).exists():
            self._fetch(self.folder / name, num_bytes, fill, lambda: None, needed=False)

    def find(self, name: str, num_bytes: int) -> KeptFile | None:
        """Open the file with this name and size if it is there."""
        path = self.folder / name
        descriptor = self._open_shared(path, num_bytes)
        if descriptor is None:
            return None
        with suppress(OSError):
            os.utime(path)
        return KeptFile(path, descriptor)

    def discard(self, name: str) -> None:
        """Remove a damaged file; processes that have it open can still read it."""
        (self.folder / name).unlink(missing_ok=True)

    def _open_shared(self, path: Path, num_bytes: int) -> int | None:
        """Open a descriptor with a shared lock; return None if the file is missing or incomplete."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        _lock(descriptor, fcntl.LOCK_SH)
        if _is_at(descriptor, path):
            if os.fstat(descriptor).st_size == num_bytes:
                return descriptor
            path.unlink(missing_ok=True)  # The disk lost its end, or somebody wrote to it.
        _close(descriptor)
        return None

    def _fetch(
        self, path: Path, num_bytes: int, fill: Callable[[int], None], release: Callable[[], None], *, needed: bool
    ) -> None:
        part = path.with_name(f".{path.name}{_PART}")
        descriptor = self._open_part(path, part)
        if descriptor is None:
            return
        try:
            if not self._reserve(descriptor, num_bytes):
                if not needed:
                    part.unlink()
                    return
                release()
                if not self._reserve(descriptor, num_bytes):
                    self._warn(
                        f"the cache {str(self.folder)!r} exceeds cache_bytes={self.max_bytes:,}, because the shards "
                        "that this node reads at once need more; increase cache_bytes"
                    )
                    os.ftruncate(descriptor, num_bytes)
            fill(descriptor)
            os.fsync(descriptor)
            with self._exclusively():  # Otherwise a process that counts files could miss one that is being renamed.
                os.replace(part, path)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _FULL:
                free = shutil.disk_usage(self.folder).free  # The unfinished file is already removed.
                raise RemoteError(
                    f"the disk of the cache {str(self.folder)!r} is full: a shard needs {num_bytes:,} bytes there and "
                    f"{free:,} are free; make room, lower cache_bytes, or give another cache_dir"
                ) from None
            raise
        finally:
            _close(descriptor)

    def _warn(self, text: str) -> None:
        """Warn, unless a process of this node just did: all ranks and their workers meet the same."""
        last = self.folder / ".warned"
        with self._exclusively():
            is_known = last.exists() and time.time() - last.stat().st_mtime < _QUIET_SECONDS
            last.touch()
        if not is_known:
            warnings.warn(text, stacklevel=2)

    def _open_part(self, path: Path, part: Path) -> int | None:
        """Open the unfinished file, locked exclusively; return None once another process has finished it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Do not wait for the lock: once the file is renamed, its readers hold locks on it.
                os.close(descriptor)
                time.sleep(_POLL_SECONDS)
            else:
                if _is_at(descriptor, part):
                    if not path.exists():
                        return descriptor
                    part.unlink()
                _close(descriptor)
            if path.exists():
                return None

    def _reserve(self, descriptor: int, num_bytes: int) -> bool:
        """Extend the unfinished file to its size, so that others count it, if there is room or room can be made."""
        with self._exclusively():
            total, unused = 0, []
            for entry in os.scandir(self.folder):
                with suppress(FileNotFoundError):
                    size = entry.stat().st_size
                    if entry.name.endswith(_PART):
                        # The unfinished file of a killed process is not locked, so remove it.
                        total += 0 if _remove_unused(entry.path) else size
                    elif not entry.name.startswith("."):
                        total += size
                        unused.append((entry.stat().st_mtime_ns, size, entry.path))
            for _, size, path in sorted(unused):
                if total + num_bytes <= self.max_bytes:
                    break
                if _remove_unused(path):
                    total -= size
            if total + num_bytes > self.max_bytes:
                return False
            os.ftruncate(descriptor, num_bytes)
            return True

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _close(descriptor)


def _lock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _close(descriptor: int, owner: int | None = None) -> None:
    """Unlock and close a file. Closing alone would not unlock, since processes forked meanwhile share the lock.

    Args:
        owner: the process that took the lock; any other only closes its own descriptor.
    """
    if owner in (None, os.getpid()):
        _lock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_unused(path: str) -> bool:
    """Remove a file unless it is locked; return whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)  # NFS locks nothing exclusively that is open for reading alone.
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    try:
        _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(path).unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        _close(descriptor)


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
        view, at = memoryview(data), start
        while len(view):
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
        digest.update(data)
    if xxh3 is not None and digest.hexdigest() != xxh3:
        raise FormatError(f"its checksum is {digest.hexdigest()}, hbpack.json says {xxh3}")
