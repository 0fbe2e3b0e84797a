"""Memory for the tensors of batches, used again when nobody holds them any longer.

Fresh memory costs more than the work that is done in it: a row of 128K tokens is 3 MiB, which the C library gets from
the system and gives back for every batch, and the system clears it page by page (1 to 2 ms). So the last few blocks
are kept. A block is used again only when no array or tensor refers to it, which Python's own reference count says: a
batch never changes while somebody holds it, or a tensor or view of it, for however long.
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
"""So many that the interpreter has specialized what it runs."""


def _count(blocks: list[npt.NDArray[np.int64]], i: int) -> int:
    return sys.getrefcount(blocks[i])


def _count_unused() -> int | None:
    """What `_count` tells of a block that only its pool holds; None where this Python's counts are of no use.

    Asked and not known: releases of Python differ in what they count on the way.
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
    """Blocks of int64, at most `num_blocks` of the sizes last asked for.

    For several threads at once. Memory: what is in use, and `num_blocks` blocks at most.
    """

    def __init__(self, num_blocks: int = 4) -> None:
        self.num_blocks = num_blocks
        self._blocks: list[npt.NDArray[np.int64]] = []
        self._lock = threading.Lock()
        self._unused = _count_unused()

    def take(self, length: int) -> npt.NDArray[np.int64]:
        """int64 [length], with whatever was in it before; it is free again when it and all views of it are gone."""
        # Never waits: a process that was forked while another thread held the lock finds it locked for good.
        if self._unused is None or not self._lock.acquire(blocking=False):
            return np.empty(length, dtype=np.int64)
        try:
            for i in range(len(self._blocks)):
                if _count(self._blocks, i) == self._unused and len(self._blocks[i]) >= length:
                    return self._blocks[i][:length]
            fresh = np.empty(-(-length // _ROUND) * _ROUND, dtype=np.int64)
            self._blocks.insert(0, fresh)
            # Those in use may go, too: whoever holds one keeps it.
            del self._blocks[self.num_blocks :]
            return fresh[:length]
        finally:
            self._lock.release()

    def take_row(self, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """int64 [length], [length+1] and [length], in one block; holding one of them holds the block."""
        stride = (length // _LINE + 1) * _LINE
        block = self.take(3 * stride)
        return block[:length], block[stride : stride + length + 1], block[2 * stride : 2 * stride + length]


PAGES = PagePool()
"""Of all data sets of the process."""
