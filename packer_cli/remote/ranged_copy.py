"""This node's copy of the ranges of a remote object that its processes have read.

The copy is a sparse file of the object's size in the cache, to be memory-mapped, and behind it a byte for each
`UNIT` bytes of the object, which is 1 once they are there. A process that fetches a range locks it, so that others
wait instead of fetching it too. Nothing is flushed to disk, so a crash of the machine may leave zeros in the place of
bytes that are marked: whoever reads must compare checksums, and discard a damaged copy.

Price: 1/128 of the bytes for the marks; 2 us to find that a range of 64 KiB is there.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.remote.file_cache import SPARSE, FileCache
from packer_cli.remote.path import RemotePath

UNIT = 128
JOINED = 16 << 10
"""Absent ranges with at most so many bytes between them are fetched in one request."""


def ranges_name(xxh3: str, num_bytes: int) -> str:
    """Return the name in a cache of the copy of ranges of an object."""
    return f"{xxh3}-{num_bytes}{SPARSE}"


class RangedCopy:
    """The copy of an object, open until it is closed; views of its data outlive it."""

    def __init__(self, cache: FileCache, path: RemotePath, num_bytes: int, xxh3: str) -> None:
        """Open the copy, or make an empty one.

        Args:
            num_bytes, xxh3: size and checksum of the object, by which copies are named.
        """
        import pyarrow as pa

        self._cache, self._object, self._num_bytes = cache, path, num_bytes
        self._lock_begin = int(xxh3[:7], 16) << 34
        self.kept = cache.open_sparse(ranges_name(xxh3, num_bytes), num_bytes + -(-num_bytes // UNIT))
        self.data: Any = pa.memory_map(f"/dev/fd/{self.kept.descriptor}").read_buffer().slice(0, num_bytes)
        """`pa.Buffer` of the object's size; zeros where nothing was fetched."""
        self._has_waited = False
        self.path, self.close = self.kept.path, self.kept.close

    def has(self, begin: int, end: int) -> bool:
        """Whether a range of the object is there."""
        return 0 not in self._marks(*self._units(begin, end))

    def require(self, *ranges: tuple[int, int]) -> None:
        """Fetch what is absent of ranges (begin, end) of the object. Raises as `RemotePath.read_range`."""
        if all(self.has(*each) for each in ranges):
            return
        self._has_waited = True
        absent = np.unique(np.concatenate([self._absent(*self._units(*each)) for each in ranges]))
        for run in np.split(absent, np.flatnonzero(np.diff(absent) > JOINED // UNIT) + 1):
            if len(run):
                self._fetch(int(run[0]), int(run[-1]) + 1)

    def _units(self, begin: int, end: int) -> tuple[int, int]:
        return max(0, begin) // UNIT, -(-min(end, self._num_bytes) // UNIT)

    def take_waited(self) -> bool:
        """Whether bytes that were required since the last call were not there."""
        has_waited, self._has_waited = self._has_waited, False
        return has_waited

    def _fetch(self, first: int, stop: int) -> None:
        with self._locked(first, stop - first):
            absent = self._absent(first, stop)
            if not len(absent):  # Another process was faster.
                return
            first, stop = int(absent[0]), int(absent[-1]) + 1
            begin, descriptor = first * UNIT, self.kept.descriptor
            data = self._object.read_range(begin, min(stop * UNIT, self._num_bytes))
            assert descriptor is not None
            self._cache.write(descriptor, data, begin)
            self._cache.write(descriptor, bytes([1]) * (stop - first), self._num_bytes + first)

    def _absent(self, first: int, stop: int) -> NDArray[np.int64]:
        """Find the units that are not there."""
        return first + np.flatnonzero(np.frombuffer(self._marks(first, stop), np.uint8) == 0)

    def _marks(self, first: int, stop: int) -> bytes:
        """Read the marks of units, not in the mapped file: on a tmpfs that is full, that would be SIGBUS."""
        assert self.kept.descriptor is not None
        return os.pread(self.kept.descriptor, max(0, stop - first), self._num_bytes + first)

    @contextmanager
    def _locked(self, first: int, num: int) -> Iterator[None]:
        """Lock these units of the object, also for other threads of this process."""
        # In a file of its own: the copy has another kind of lock, which NFS makes of the same.
        descriptor = os.open(self._cache.folder / ".ranges-lock", os.O_RDWR | os.O_CREAT, 0o666)
        place = os.SEEK_SET, self._lock_begin + first, num, 0

        def lock(how: int) -> None:
            with suppress(OSError, AttributeError):  # Without such locks, a range may be fetched twice.
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", how, *place))

        try:
            lock(fcntl.F_WRLCK)
            yield
        finally:
            lock(fcntl.F_UNLCK)  # Closing alone would not, where a process was forked meanwhile.
            os.close(descriptor)
