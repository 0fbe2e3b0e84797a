"""A folder of files of limited size for all processes of a node, and files that are kept while someone reads them.

A file is written under a temporary name and renamed when complete. The process that fetches it holds a lock, so that
others wait instead of fetching it too; a process that reads it holds a shared lock, so that nobody removes it. The
locks are `flock`, so they end with the process, however it ends. The time of a file's last use is its modification
time. Sparse files, which grow while they are read (`remote.ranged_copy`), count with the blocks that they have.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packer_cli.errors import RemoteError

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART = ".part"
SPARSE = ".ranges"
"""Suffix of sparse files."""
_SHARE_CHECKED = 1024
"""Processes see to the bound of the cache after writing each 1/1024 of it into sparse files, and then make room for as
much of 64 of them: eight ranks with seven workers each."""
_POLL_SECONDS = 0.02
"""Seconds between checks of a file that another process is fetching."""
_QUIET_SECONDS = 600
"""Seconds from a warning to the next one."""


class KeptFile:
    """A file that stays in the cache until this is closed or garbage-collected; without a cache, in any case."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path, self.descriptor = path, descriptor
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
        self._unchecked = 0

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

    def open_sparse(self, name: str, num_bytes: int) -> KeptFile:
        """Open a file of this size for reading and writing; if there is none, one of zeros, which take no room."""
        path = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            _lock(descriptor, fcntl.LOCK_SH)
            if _is_at(descriptor, path):
                if os.fstat(descriptor).st_size in (0, num_bytes):
                    os.ftruncate(descriptor, num_bytes)
                    with suppress(OSError):
                        os.utime(path)
                    return KeptFile(path, descriptor)
                path.unlink(missing_ok=True)
            _close(descriptor)

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        """Write to a sparse file, after making room."""
        self._unchecked += len(data)
        if self._unchecked * _SHARE_CHECKED > self.max_bytes:
            self._unchecked = 0
            with self._exclusively():
                has_room = self._make_room(64 * self.max_bytes // _SHARE_CHECKED)
            if not has_room:
                self._warn()
        with self._naming_full_disk(len(data)):
            write_at(descriptor, data, at)

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
                    self._warn()
                    os.ftruncate(descriptor, num_bytes)
            with self._naming_full_disk(num_bytes, part):
                fill(descriptor)
                os.fsync(descriptor)
            with self._exclusively():  # Otherwise a process that counts files could miss one that is being renamed.
                os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            _close(descriptor)

    @contextmanager
    def _naming_full_disk(self, num_bytes: int, part: Path | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if part is not None:
                part.unlink(missing_ok=True)
            free = shutil.disk_usage(self.folder).free  # The unfinished file is already removed.
            raise RemoteError(
                f"the disk of the cache {str(self.folder)!r} is full: a shard needs {num_bytes:,} bytes there and "
                f"{free:,} are free; make room, lower cache_bytes, or give another cache_dir"
            ) from None

    def _warn(self) -> None:
        """Warn, unless a process of this node just did: all ranks and their workers meet the same."""
        last = self.folder / ".warned"
        with self._exclusively():
            is_known = last.exists() and time.time() - last.stat().st_mtime < _QUIET_SECONDS
            last.touch()
        if not is_known:
            warnings.warn(
                f"the cache {str(self.folder)!r} exceeds cache_bytes={self.max_bytes:,}, because the shards that this "
                "node reads at once need more; increase cache_bytes",
                stacklevel=2,
            )

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
            has_room = self._make_room(num_bytes)
            if has_room:
                os.ftruncate(descriptor, num_bytes)
            return has_room

    def _make_room(self, num_bytes: int) -> bool:
        """Remove the least recently used files until there is room for so many bytes; return whether there is."""
        total, unused = 0, []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):
                status = entry.stat()
                size = 512 * status.st_blocks if entry.name.endswith(SPARSE) else status.st_size
                if entry.name.endswith(_PART):
                    # The unfinished file of a killed process is not locked, so remove it.
                    total += 0 if _remove_unused(entry.path) else size
                elif not entry.name.startswith("."):
                    total += size
                    unused.append((status.st_mtime_ns, size, entry.path))
        for _, size, path in sorted(unused):
            if total + num_bytes <= self.max_bytes:
                break
            if _remove_unused(path):
                total -= size
        return total + num_bytes <= self.max_bytes

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _close(descriptor)


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write all of the data from this place on."""
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


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
