"""The place of a data set: the epoch, which its workers share, the epoch's rows, and the next iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import Columns, RankFileError, RankRow, as_epoch, read_rows
from packer_cli.loader.options import as_integer
from packer_cli.loader.storage import Storage


class Place:
    """The epoch of one rank's data set, and the position in it. Pickles with its position.

    Raises:
        FormatError: the rank's rows are missing or damaged.
        ConfigError: the set does not hold the epoch.
        TypeError, ValueError: there is no such epoch.
    """

    def __init__(self, storage: Storage, manifest: Manifest, rank: int, epoch: int) -> None:
        self._storage = storage
        self._manifest = manifest
        self._rank = rank
        # In shared memory, so that set_epoch reaches persistent workers.
        self._shared_epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._epoch_view = self._shared_epoch.numpy()
        self._epoch_view[0] = _check_epoch(epoch)
        self.has_sampler = False
        """Whether a `PackedSampler` was iterated, so that a StatefulDataLoader may be restored."""
        self._begin()
        self._loaded = self._read(self.epoch)

    def _begin(self) -> None:
        self.position = 0
        """The iteration at which iterating continues."""
        self.next = 0
        """The iteration after the last one returned, by iterating or by []."""
        self.first = 0
        """The iteration at which the next pass of a sampler begins."""
        self._num_passes = 0

    def _read(self, epoch: int) -> RankRows:
        return read_rank_rows(self._storage, self._manifest, self._rank, epoch)

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._epoch_view.item(0)

    @property
    def rows(self) -> RankRows:
        """The rows of the current epoch; if another process has changed the epoch, goes to its start."""
        loaded = self._loaded
        epoch = self._epoch_view.item(0)
        if loaded.epoch != epoch:
            loaded = self._loaded = self._read(epoch)
            self._begin()
        return loaded

    def set_epoch(self, epoch: int) -> None:
        """Go to iteration 0 of `epoch`; the position does not change if this is the current epoch."""
        epoch = _check_epoch(epoch)
        if epoch != self.rows.epoch:
            self._loaded = self._read(epoch)
            self._epoch_view[0] = epoch
            self._begin()

    def resume_at(self, iteration: int, num_passes: int = 1) -> None:
        """Go to an iteration of the current epoch, at which the next `num_passes` passes of a sampler begin."""
        self.position = self.next = self.first = iteration
        self._num_passes = num_passes

    def begin_pass(self) -> None:
        """Count a new pass of a sampler; passes after those of `resume_at` cover the whole epoch."""
        self._num_passes -= 1
        if self._num_passes <= 0:
            self.first = 0

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_epoch_view"], state["_loaded"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared_epoch.share_memory_()  # a plain pickle holds a copy; does nothing if it is already shared
        self._epoch_view = self._shared_epoch.numpy()
        self._loaded = self._read(self.epoch)


def _check_epoch(epoch: int) -> int:
    epoch = as_integer("epoch", epoch)
    if epoch < 0:
        raise ValueError(f"epoch is {epoch}: it must not be negative")
    if epoch > MAX_EPOCH:
        raise ValueError(f"epoch is {epoch}: it must be at most {MAX_EPOCH}")
    return epoch


_LOOK_AHEAD = 4096
"""Rows in which to look for the next shards."""


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The rows of one rank in one epoch."""

    epoch: int
    columns: Columns
    num_steps: int
    """Of the whole epoch."""
    firsts: NDArray[np.int64]
    """int64[i]: first row of each iteration."""

    _items: tuple[Callable[[int], Any], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Look up the methods once, which would be a third of the price of a row.
        object.__setattr__(self, "_items", tuple(self.columns[name].item for name in RankRow._fields))

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def shortest_window(self) -> int:
        """Tokens of the epoch's shortest window; 0: samples are whole in all its steps."""
        window = self.columns["window"]
        return int(window.min(initial=2**31 - 1, where=window > 0)) if window.any() else 0

    def rows_of(self, i: int) -> range:
        """The rows of iteration `i`, one or more."""
        first = self.firsts.item(i)
        return range(first, self.firsts.item(i + 1) if i + 1 < len(self.firsts) else len(self.columns["step"]))

    def next_shards(self, i: int, num: int) -> list[tuple[int, int]]:
        """The first `num` shards, as (group, shard), read from row `i` on, within the next 4096 rows."""
        stop = i + _LOOK_AHEAD
        shard = self.columns["shard"][i:stop].astype(np.int64)
        keys = (self.columns["group"][i:stop].astype(np.int64) << 32 | shard)[shard >= 0]
        first = np.sort(np.unique(keys, return_index=True)[1])
        return [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in keys[first[:num]]]

    def step_of(self, i: int) -> int:
        """The step of iteration `i`; `num_steps` for the iteration after the last."""
        return int(self.columns["step"][self.firsts[i]]) if i < len(self) else self.num_steps

    def seconds_of(self, i: int) -> float | None:
        """Predicted seconds of the step of iteration `i`; None if the set says none."""
        seconds = self.columns.get("step_seconds")
        return None if seconds is None else float(seconds[self.firsts[i]])

    def row(self, i: int) -> RankRow:
        """Row `i`."""
        return RankRow(*[item(i) for item in self._items])


def read_rank_rows(storage: Storage, manifest: Manifest, rank: int, epoch: int) -> RankRows:
    """The rows of `rank` in `epoch`; an epoch that was not written repeats one that was, in another order.

    Raises:
        ConfigError: the set does not hold the epoch.
        FormatError: the file is missing, belongs to another set or rank, or does not agree with the manifest.
    """
    entry, is_written = manifest.generation.find_epoch(epoch)
    try:
        columns = read_rows(storage.read, manifest, entry, rank, compares=storage.verify != "none")
    except RankFileError as error:
        name = storage.name(error.path)
        raise FormatError(f"{name!r} is damaged or incomplete ({error}); {storage.remedy}") from None
    columns = as_epoch(columns, entry, manifest.seed, epoch, is_written=is_written)
    firsts = np.arange(entry.num_iterations)
    if len(columns["step"]) > len(firsts):
        firsts = np.flatnonzero(np.diff(columns["iteration"], prepend=-1))
    return RankRows(epoch=epoch, columns=columns, num_steps=entry.first_step + entry.num_steps, firsts=firsts)
