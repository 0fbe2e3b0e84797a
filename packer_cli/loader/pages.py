"""Memory for the tensors of batches, reused once nothing refers to them.

Fresh memory costs more than the work done in it: a row of 128K tokens is 3 MiB, which the C library gets from the
system and returns for every batch, and the system clears it page by page (1 to 2 ms). So the last few blocks are kept.
A block is only reused when no array or tensor refers to it, according to Python's own reference count: a batch never
changes as long as anything refers to it, or to a tensor or view of it.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

_ROUND = 1024
_LINE = 8
"""Items of a cache line."""
_TRIES = 64
"""Enough for the interpreter to specialize the code."""


def _count(blocks: list[npt.NDArray[np.int64]], i: int) -> int:
    return sys.getrefcount(blocks[i])


def _count_unused() -> int | None:
    """Return the `_count` of a block that only its pool refers to; None if this Python's counts are useless.

    It is measured because releases of Python count temporary references differently.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    blocks = [np.empty(1, dtype=np.int64)]
    unused = {_count(blocks, 0) for _ in range(_TRIES)}
    view = blocks[0][:1]
    held = {_count(blocks, 0) for _ in range(_TRIES)}
    del view
    return min(unused) if held == {min(unused) + 1} and len(unused) == 1 else None


class PagePool:
    """Keeps the last `num_blocks` blocks of int64.

    Safe for several threads at once. Memory: blocks in use, and at most `num_blocks` others.
    """

    def __init__(self, num_blocks: int = 4) -> None:
        self.num_blocks = num_blocks
        self._blocks: list[npt.NDArray[np.int64]] = []
        self._lock = threading.Lock()
        self._unused = _count_unused()

    def take(self, length: int) -> npt.NDArray[np.int64]:
        """Take int64 [length], uninitialized; the array is free again once it and all its views are gone."""
        # Never wait: in a process that was forked while another thread held the lock, it stays locked forever.
        if self._unused is None or not self._lock.acquire(blocking=False):
            return np.empty(length, dtype=np.int64)
        try:
            for i in range(len(self._blocks)):
                if _count(self._blocks, i) == self._unused and len(self._blocks[i]) >= length:
                    return self._blocks[i][:length]
            fresh = np.empty(-(-length // _ROUND) * _ROUND, dtype=np.int64)
            self._blocks.insert(0, fresh)
            # Blocks in use may be dropped, too: their users keep them alive.
            del self._blocks[self.num_blocks :]
            return fresh[:length]
        finally:
            self._lock.release()

    def take_row(self, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Take int64 [length], [length+1] and [length], in one block, which each of them keeps alive."""
        stride = (length // _LINE + 1) * _LINE
        block = self.take(3 * stride)
        return block[:length], block[stride : stride + length + 1], block[2 * stride : 2 * stride + length]


PAGES = PagePool()
"""Shared by all data sets of the process."""
