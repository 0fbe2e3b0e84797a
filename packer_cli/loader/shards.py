"""Read packs out of memory-mapped shards: views, no copies.

Price: opening a shard costs about a millisecond once; a record batch (16 packs) tens of microseconds, of which the
last `BATCHES_KEPT` are remembered; then a pack is five slices. Views hold no memory of their own beyond the page
cache, so memory stays flat however many packs are read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer_cli.arrays import to_numpy
from packer_cli.errors import FormatError
from packer_cli.loader.storage import Storage

PACKS_PER_BATCH = 16
BATCHES_KEPT = 64

LIST_COLUMNS = ("input_ids", "loss_mask", "cu_seqlens", "sample_ids")
NUMBER_COLUMNS = ("pack_id", "num_loss_tokens", "cp_sharding")


class Pack(NamedTuple):
    """One pack as it lies in its shard; the arrays are read-only views of the file."""

    pack_id: int
    num_loss_tokens: int
    input_ids: np.ndarray
    """int32 [t]"""
    loss_mask: np.ndarray
    """int8 [t]"""
    cu_seqlens: np.ndarray
    """int32 [n+1], from 0 to t"""
    sample_ids: np.ndarray
    """int64 [n]"""
    cp_sharding: int = 0
    """Context-parallel sharding that was planned: 0 per sequence, 1 per document"""


class _RecordBatch(NamedTuple):
    values: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    numbers: tuple[np.ndarray, ...]


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(self, storage: Storage, groups: list[dict[str, Any]]) -> None:
        self.storage = storage
        self.groups = groups
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._retried: set[str] = set()
        self._files: OrderedDict[tuple[int, int], tuple[Any, Any]] = OrderedDict()
        self._batches: OrderedDict[tuple[int, int, int], _RecordBatch] = OrderedDict()

    def close(self) -> None:
        """Forget all that is open; reading goes on with opening it again."""
        self._batches.clear()
        for key in [*self._files]:
            self._close(key)

    def _close(self, key: tuple[int, int]) -> None:
        for number in [number for number in self._batches if number[:2] == key]:
            del self._batches[number]
        _, kept = self._files.pop(key)
        if kept is not None:
            kept.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"storage": self.storage, "groups": self.groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, group: int, shard: int, row: int) -> Pack:
        """The pack in `row` of shard number `shard` of group number `group`.

        Raises FormatError where the shard is missing, or not as the manifest says.
        """
        if self._pid != os.getpid():
            self._forget()
        key = (group, shard, row // PACKS_PER_BATCH)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = self._read_batch(*key)
            if len(self._batches) > BATCHES_KEPT:
                self._batches.popitem(last=False)
        else:
            self._batches.move_to_end(key)
        i = row % PACKS_PER_BATCH
        if i >= len(batch.numbers[0]):
            raise self._damaged(group, shard, f"no row {row}")
        input_ids, loss_mask, cu_seqlens, sample_ids = (
            values[offsets[i] : offsets[i + 1]] for values, offsets in zip(batch.values, batch.offsets, strict=True)
        )
        pack_id, num_loss_tokens, cp_sharding = (column.item(i) for column in batch.numbers)
        return Pack(pack_id, num_loss_tokens, input_ids, loss_mask, cu_seqlens, sample_ids, cp_sharding)

    def _read_batch(self, group: int, shard: int, number: int) -> _RecordBatch:
        if (group, shard) not in self._files:
            while len(self._files) >= self.storage.files_kept:
                self._close(next(iter(self._files)))
            self._files[group, shard] = self._open(group, shard)
        else:
            self._files.move_to_end((group, shard))
        reader, _ = self._files[group, shard]
        if number >= reader.num_record_batches:
            raise self._damaged(group, shard, f"no row {number * PACKS_PER_BATCH}")
        batch = reader.get_batch(number)
        lists = [batch.column(name) for name in LIST_COLUMNS]
        return _RecordBatch(
            values=tuple(to_numpy(column.values) for column in lists),
            # As Python ints: slicing with numpy scalars is several times slower.
            offsets=tuple(to_numpy(column.offsets).tolist() for column in lists),
            numbers=tuple(to_numpy(batch.column(name)) for name in NUMBER_COLUMNS),
        )

    def is_open(self, group: int, shard: int) -> bool:
        """Whether a shard is open already."""
        return (group, shard) in self._files and self._pid == os.getpid()

    def check_all(self) -> None:
        """Open every shard of the set once, which checks it as the storage was told to."""
        for group, entry in enumerate(self.groups):
            for shard in range(len(entry["shards"])):
                _, kept = self._open(group, shard)
                if kept is not None:
                    kept.close()

    def prefetch(self, places: list[tuple[int, int]]) -> None:
        """Fetch shards, as (group, shard), in the background."""
        self.storage.prefetch([self._entry(*place) for place in places])

    def _open(self, group: int, shard: int) -> tuple[Any, Any]:
        entry = self._entry(group, shard)
        while True:
            try:
                source, kept = self.storage.open_shard(entry, self.close)
            except (OSError, FormatError) as error:
                raise self._damaged(group, shard, str(error)) from None
            try:
                # Not IpcReadOptions(included_fields=...): leaving columns out makes get_batch three times slower.
                reader = pa.ipc.open_file(source)
                if {*LIST_COLUMNS, *NUMBER_COLUMNS} <= set(reader.schema.names):
                    return reader, kept
                why = "it lacks columns"
            except (OSError, pa.ArrowInvalid) as error:
                why = str(error)
            if kept is not None:
                kept.close()
            # A copy that went wrong is fetched again, once.
            if entry["path"] in self._retried or not self.storage.discard(entry):
                raise self._damaged(group, shard, why)
            self._retried.add(entry["path"])

    def _entry(self, group: int, shard: int) -> dict[str, Any]:
        try:
            return self.groups[group]["shards"][shard]
        except IndexError:
            raise FormatError(
                f"hbpack.json lists no shard {shard} of group {group}, which a rank manifest names; "
                "run hbpack pack again"
            ) from None

    def _damaged(self, group: int, shard: int, why: str) -> FormatError:
        file = self.storage.name(self._entry(group, shard)["path"])
        return FormatError(f"shard {file!r} is damaged or incomplete ({why}); {self.storage.remedy}")
