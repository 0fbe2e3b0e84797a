"""Fetches what a rank will read next of a remote set, on a few threads.

Whoever had to wait for a row has the next ones fetched twice as far ahead, up to 256 MiB. So the distance follows from
the latency of the storage and from the time that a step takes. Rows that the other ranks of this node read are left to
those; where they share a record batch, the node's cache has what they have in common.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress

import numpy as np

from packer_cli.format.arrays import dtype_of
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import RankRows

Place = tuple[int, int]
"""Group, and number of a shard in it."""
_THREADS = 8
_MOST_BYTES = 256 << 20
_MOST_ROWS = 4096
"""Rows in which to look for what comes next."""
_SHARDS_AHEAD = 2
"""Whole shards that are fetched ahead."""


class ReadAhead:
    """The fetches that the reader of a remote set will need, on threads that end when nothing is left."""

    def __init__(self, manifest: Manifest, fetch: Callable[[Place, list[int] | None], None], cache_bytes: int) -> None:
        """Fetch nothing yet.

        Args:
            fetch: fetches some rows of a shard; None: all of it.
            cache_bytes: the most bytes in the node's cache, of which all ranks together take a quarter.
        """
        self._manifest, self._fetch = manifest, fetch
        self._num_ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        self._most_bytes = min(_MOST_BYTES, cache_bytes // (4 * self._num_ranks))
        self._lock = threading.Lock()
        self._jobs: deque[tuple[int, Place, list[int] | None]] = deque()
        """The row of the rank that needs it, and what to fetch."""
        self._threads: set[threading.Thread] = set()
        self._rows: RankRows | None = None
        self._number, self._planned, self._depth = -1, 0, _THREADS
        self.whole: set[int] = set()
        """Groups of which this node reads half or more in the epoch, and so whole shards."""

    def enter(self, rows: RankRows) -> None:
        """Begin with an epoch, unless it is the current one."""
        if rows is self._rows:
            return
        self._rows, self._planned = rows, 0
        self.whole = self._whole_groups(rows)
        token_bytes = dtype_of(self._manifest.schema.field("input_ids").type).itemsize
        self._most = max(
            1, min(_MOST_ROWS, int(self._most_bytes // (token_bytes * rows.columns["row_length"].mean())))
        )

    def follow(self, number: int, is_open: Container[Place], *, is_new: bool, has_waited: bool) -> None:
        """Fetch what comes after row `number`, which was just read.

        Args:
            is_open: tells which shards the reader has open.
            is_new: whether it opened that of the row for it.
            has_waited: whether it had to wait for the row, of which the node has ranges.
        """
        assert self._rows is not None
        with self._lock:
            if not self._number <= number < self._planned:
                self._planned = number + 1
                self._jobs.clear()
            self._number = number
            if has_waited:
                self._depth *= 2
            self._depth = min(self._depth, self._most)
            if is_new and self.whole:
                others = next_shards(self._rows, number + 1)
                wanted = [each for each in others if each[1][0] in self.whole and each[1] not in is_open]
                self._jobs = deque(job for job in self._jobs if job[2] is not None)
                self._jobs += [(first, place, None) for first, place in wanted[:_SHARDS_AHEAD]]
            if self._planned <= number + 1 + self._depth // 2:  # Not row by row, so that neighbors travel together.
                self._plan(self._rows, number + 1 + self._depth)
            for _ in range(min(len(self._jobs), _THREADS - len(self._threads))):
                thread = threading.Thread(target=self._work, name="hbpack-read-ahead")
                self._threads.add(thread)
                thread.start()

    def stop(self) -> None:
        """Stop, and wait for what is being fetched."""
        with self._lock:
            self._jobs.clear()
            self._rows, threads = None, [*self._threads]
        for thread in threads:
            thread.join()

    def _plan(self, rows: RankRows, stop: int) -> None:
        """Plan the fetches of rows up to `stop`: one for each record batch, if the rank reads its rows in a row."""
        span = slice(self._planned, stop)
        last = None
        columns = [rows.columns[name][span].tolist() for name in ("group", "shard", "row")]
        for number, (group, shard, row) in enumerate(zip(*columns, strict=True), self._planned):
            place = (group, shard)
            if shard < 0 or group in self.whole:
                continue
            key = (place, row // PACKS_PER_BATCH)
            if key == last:
                self._jobs[-1] = (number, place, [*(self._jobs[-1][2] or ()), row])
            else:
                self._jobs.append((number, place, [row]))
            last = key
        self._planned += len(columns[0])

    def _whole_groups(self, rows: RankRows) -> set[int]:
        """Find the groups of whose packs the ranks of this node read half or more; each reads as many as this one."""
        groups = self._manifest.groups
        num_rows = np.bincount(rows.columns["group"][rows.columns["shard"] >= 0], minlength=len(groups))
        replicas = [max(1, self._num_ranks // group.layout.num_gpus) for group in groups]
        return {g for g, group in enumerate(groups) if 2 * num_rows[g] * replicas[g] >= max(1, group.num_packs)}

    def _work(self) -> None:
        while True:
            with self._lock:
                while self._jobs and self._jobs[0][0] <= self._number:  # The reader was faster.
                    self._jobs.popleft()
                # The exit waits for what is being fetched: a daemon's end inside Arrow would abort the process.
                if not self._jobs or not threading.main_thread().is_alive():
                    self._threads.discard(threading.current_thread())
                    return
                _, place, rows = self._jobs.popleft()
            with suppress(Exception):  # Reading will meet the error again, and report it.
                self._fetch(place, rows)


def next_shards(rows: RankRows, i: int) -> list[tuple[int, Place]]:
    """List the shards read from row `i` on, within the next 4096 rows, each with its first row there."""
    group, shard = (rows.columns[name][i : i + _MOST_ROWS].astype(np.int64) for name in ("group", "shard"))
    keys, first = np.unique(group << 32 | shard, return_index=True)
    places = zip(first.tolist(), keys.tolist(), strict=True)
    return [(i + k, (key >> 32, key & 0xFFFFFFFF)) for k, key in sorted(places) if shard[k] >= 0]
