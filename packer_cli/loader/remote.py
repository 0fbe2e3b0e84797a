"""A packed set in remote storage (S3 or anything else that fsspec reads), with a cache of shards on each node.

`hbpack.json` and the rank's manifests are read directly. Shards are read through a cache on disk that all processes of
the node share (`cache.py`). Their names there are their checksums, so that a set that was moved or rebalanced is not
fetched again. A thread fetches the next shards while the current ones are read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import xxhash

from packer_cli.errors import FormatError, RemoteError
from packer_cli.format.checksums import find_damage
from packer_cli.format.entries import FileInfo
from packer_cli.loader.cache import FileCache
from packer_cli.loader.storage import Verify

T = TypeVar("T")

TRIES = 4
FIRST_DELAY = 0.5
"""Seconds before the second try; each further one waits twice as long."""
BLOCK = 32 * 2**20
"""Bytes per request, which a failure may waste."""


def default_cache_dir() -> Path:
    """`$HBPACK_CACHE`, else `hbpack` in the user's cache folder."""
    if "HBPACK_CACHE" in os.environ:
        return Path(os.environ["HBPACK_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hbpack"


class RemoteStorage:
    """The files below a URL."""

    files_kept = 8
    is_remote = True
    remedy = "copy the set again"

    def __init__(self, url: str, cache_dir: Path, cache_bytes: int, verify: Verify, options: dict[str, Any]) -> None:
        self.url = url
        self.cache = FileCache(cache_dir, cache_bytes)
        self.verify = verify
        self.options = options
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._opened: tuple[Any, str] | None = None
        self._lock = threading.Lock()
        self._wanted: list[FileInfo] = []
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def name(self, path: str) -> str:
        """A URL."""
        return f"{self.url}/{path}"

    def read(self, path: str) -> pa.Buffer:
        """Read a small file, without the cache, because manifests change."""
        system, root = self._system()
        return pa.py_buffer(self._try(path, lambda: system.cat_file(f"{root}/{path}")))

    def open_shard(self, entry: FileInfo, release: Any) -> tuple[pa.NativeFile, Any]:
        """Open a shard in the cache, which keeps it as long as the second result is open."""
        self._system()
        for again in (False, True):
            file = self.cache.open(_cached(entry), entry.num_bytes, self._filler(entry), release)
            try:
                return pa.memory_map(str(file.path)), file
            except OSError:  # This node's disk damaged it, or it was removed meanwhile.
                file.close()
                self.cache.discard(_cached(entry))
                if again:
                    raise
        raise AssertionError

    def check_shard(self, entry: FileInfo) -> None:
        """Check a shard; a copy that this node's disk damaged is fetched again."""
        self._system()
        for again in (False, True):
            file = self.cache.open(_cached(entry), entry.num_bytes, self._filler(entry))
            why = find_damage(file.path, entry.num_bytes, entry.xxh3)
            file.close()
            if why is None:
                return
            self.discard(entry)
            if again:
                raise FormatError(why)

    def discard(self, entry: FileInfo) -> bool:
        """Remove a shard from the cache."""
        self.cache.discard(_cached(entry))
        return True

    def prefetch(self, entries: Sequence[FileInfo]) -> None:
        """Fetch shards on a thread, which ends when none are left; replaces those requested before."""
        self._system()
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
                self.cache.fetch(_cached(entry), entry.num_bytes, self._filler(entry))
            except Exception:  # Reading the shard will meet the error again, and report it.
                continue

    def _system(self) -> tuple[Any, str]:
        """(file system, path of the set in it), opened by this process."""
        if self._pid != os.getpid():
            self._reset()
        if self._opened is None:
            try:
                import fsspec

                self._opened = fsspec.url_to_fs(self.url, **self.options)
            except ModuleNotFoundError as error:
                raise ImportError(f"{self.url!r} needs {error.name}: pip install {error.name}") from None
            except ImportError as error:
                if "s3fs" in str(error):  # fsspec does not know the extra that installs it.
                    raise ImportError(f"{self.url!r} needs s3fs: pip install 'hbpack[remote]'") from None
                raise ImportError(f"{self.url!r} cannot be opened: {error}") from None
            except ValueError as error:
                raise RemoteError(f"{self.url!r} cannot be opened: {error}; check the address") from None
        return self._opened

    def _filler(self, entry: FileInfo) -> Callable[[int], None]:
        def fill(descriptor: int) -> None:
            try:
                self._download(entry, descriptor)
            except FormatError:
                self._download(entry, descriptor)

        return fill

    def _download(self, entry: FileInfo, descriptor: int) -> None:
        """Fetch a shard. Raises FormatError unless it is what was written: sets share the cache."""
        system, root = self._system()
        path = f"{root}/{entry.path}"
        num_bytes = self._try(entry.path, lambda: system.info(path, refresh=True)["size"])
        if num_bytes != entry.num_bytes:
            raise FormatError(f"{num_bytes} bytes, hbpack.json says {entry.num_bytes}")
        digest = xxhash.xxh3_128()
        for start in range(0, num_bytes, BLOCK):
            stop = min(start + BLOCK, num_bytes)
            data = self._try(entry.path, lambda a=start, b=stop: system.cat_file(path, start=a, end=b))  # type: ignore[misc]
            if len(data) != stop - start:
                raise FormatError(f"got {len(data)} bytes for bytes {start} to {stop}")
            view, at = memoryview(data), start
            while len(view):
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
            digest.update(data)
        if digest.hexdigest() != entry.xxh3:
            raise FormatError(f"its checksum is {digest.hexdigest()}, hbpack.json says {entry.xxh3}")

    def _try(self, path: str, read: Callable[[], T]) -> T:
        """Call `read`, with retries. Raises FileNotFoundError, or RemoteError after the last try."""
        for number in range(1, TRIES + 1):
            try:
                return read()
            except FileNotFoundError:
                raise
            except PermissionError as error:
                raise RemoteError(f"{self.name(path)!r} may not be read ({error}); check the credentials") from None
            except Exception as error:  # Every file system has its own network errors.
                if number == TRIES:
                    raise RemoteError(
                        f"{self.name(path)!r} could not be read in {TRIES} tries ({type(error).__name__}: {error}); "
                        "check the network and the address, then resume from the last state"
                    ) from error
                time.sleep(FIRST_DELAY * 2 ** (number - 1))
        raise AssertionError


def _cached(entry: FileInfo) -> str:
    return f"{entry.xxh3}-{entry.num_bytes}.arrow"
