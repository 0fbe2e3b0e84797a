"""Read packs out of memory-mapped shards: views, no copies.

Price: opening a shard costs about a millisecond once; a record batch (16 packs) tens of microseconds, of which the
last `BATCHES_KEPT` are remembered; then a pack is five slices. Views hold no memory of their own beyond the page
cache, so memory stays flat however many packs are read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer_cli.arrays import to_numpy
from packer_cli.errors import FormatError

PACKS_PER_BATCH = 16
FILES_KEPT = 32
BATCHES_KEPT = 64

LIST_COLUMNS = ("input_ids", "loss_mask", "cu_seqlens", "sample_ids")
NUMBER_COLUMNS = ("pack_id", "num_loss_tokens")


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


class _RecordBatch(NamedTuple):
    values: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    numbers: tuple[np.ndarray, ...]


class ShardReader:
    """The shards of a packed set; opens each when it is first read, and keeps the last few open.

    Not for several threads at once. Pickles to its arguments; a forked process opens its own files.
    """

    def __init__(self, path: Path, groups: list[dict[str, Any]]) -> None:
        self.path = path
        self.groups = groups
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._files: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._batches: OrderedDict[tuple[int, int, int], _RecordBatch] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "groups": self.groups}

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
        lists = [
            values[offsets[i] : offsets[i + 1]] for values, offsets in zip(batch.values, batch.offsets, strict=True)
        ]
        pack_id, num_loss_tokens = (column.item(i) for column in batch.numbers)
        return Pack(pack_id, num_loss_tokens, *lists)

    def _read_batch(self, group: int, shard: int, number: int) -> _RecordBatch:
        reader = self._files.get((group, shard))
        if reader is None:
            reader = self._files[group, shard] = self._open(group, shard)
            if len(self._files) > FILES_KEPT:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end((group, shard))
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

    def _open(self, group: int, shard: int) -> Any:
        entry = self._entry(group, shard)
        file = self.path / entry["path"]
        try:
            num_bytes = file.stat().st_size
            if num_bytes != entry["num_bytes"]:
                raise self._damaged(group, shard, f"{num_bytes} bytes, hbpack.json says {entry['num_bytes']}")
            source = pa.memory_map(str(file))
            # Not IpcReadOptions(included_fields=...): leaving columns out makes get_batch three times slower.
            reader = pa.ipc.open_file(source)
            if not {*LIST_COLUMNS, *NUMBER_COLUMNS} <= set(reader.schema.names):
                raise self._damaged(group, shard, "it lacks columns")
            return reader
        except (OSError, pa.ArrowInvalid) as error:
            raise self._damaged(group, shard, str(error)) from None

    def _entry(self, group: int, shard: int) -> dict[str, Any]:
        try:
            return self.groups[group]["shards"][shard]
        except IndexError:
            raise FormatError(
                f"hbpack.json lists no shard {shard} of group {group}, which a rank manifest names; "
                "run hbpack pack again"
            ) from None

    def _damaged(self, group: int, shard: int, why: str) -> FormatError:
        file = self.path / self._entry(group, shard)["path"]
        return FormatError(f"shard {str(file)!r} is damaged or incomplete ({why}); run hbpack pack again")
