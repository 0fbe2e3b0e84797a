"""A remote object, read as a file: in ranges, each retried by itself, and ahead of a reader that goes forward."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from packer_cli.remote.system import ObjectInfo

FIRST_BLOCK = 256 << 10
"""Least bytes of a request. While reading goes forward, each is twice as large as the one before."""
LARGEST_BLOCK = 8 << 20
AHEAD = 3
"""Requests under way before the reader asks for their bytes."""


class RemoteFile(io.RawIOBase):
    """A file of ranges that `fetch` gets.

    Memory: `AHEAD + 2` blocks of 8 MiB at most. Price of reading forward: a request every 8 MiB, three at a time.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        info: ObjectInfo,
        *,
        goes_forward: bool,
        is_pinned: bool = False,
    ) -> None:
        """Request nothing yet.

        Args:
            fetch: (start, stop) -> the bytes of that range.
            info: facts that the storage gives of the object, with its size.
            goes_forward: whether to request the bytes that follow while the reader is busy.
            is_pinned: whether `fetch` fails once the object is another version than `info` says.
        """
        super().__init__()
        self.info = info
        self.is_pinned = is_pinned
        self._fetch = fetch
        self._size = self._stop = int(info["size"])
        self._at = 0
        self._window: tuple[int, bytes] = (0, b"")
        self._block = FIRST_BLOCK
        self._goes_forward = goes_forward
        self._pool = ThreadPoolExecutor(AHEAD + 1, thread_name_prefix="hbpack-read-ahead")
        self._ahead: deque[Future[bytes]] = deque()
        """Requests of one block after another, from the end of the window on."""
        self._planned = 0
        """The place at which the next request begins."""

    def stop_at(self, stop: int) -> None:
        """Request nothing from `stop` on before it is read."""
        self._stop = min(stop, self._size)

    def readable(self) -> bool:
        """Return True: the file can always be read."""
        return True

    def seekable(self) -> bool:
        """Return True: reads may begin anywhere."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte to read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill a buffer, up to the end of the file."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view) and self._at < self._size:
            begin, data = self._window
            if not begin <= self._at < begin + len(data):
                begin, data = self._window = self._at, self._next(len(view) - done)
            part = memoryview(data)[self._at - begin : self._at - begin + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done

    def close(self) -> None:
        """Forget the requests under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
        self._window = (0, b"")
        super().close()

    def _next(self, size: int) -> bytes:
        """Return bytes from the current place on, at least one."""
        begin, data = self._window
        goes_on = bool(data) and self._at == begin + len(data)
        self._block = min(2 * self._block, LARGEST_BLOCK) if goes_on else FIRST_BLOCK
        if not self._goes_forward:
            return self._fetch(self._at, min(self._at + max(size, self._block), self._size))
        if not goes_on:
            for future in self._ahead:
                future.cancel()
            self._ahead.clear()
            self._planned = self._at
        stop = max(self._stop, self._at + 1)
        while self._planned < stop and len(self._ahead) <= (AHEAD if goes_on else 0):
            at, self._planned = self._planned, min(self._planned + self._block, stop)
            self._ahead.append(self._pool.submit(self._fetch, at, self._planned))
        return self._ahead.popleft().result()
