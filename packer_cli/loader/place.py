"""The place of a data set: the epoch, which its workers share, the epoch's rows, and the next iteration."""

from __future__ import annotations

from typing import Any

import torch

from packer_cli.format.epochs import MAX_EPOCH, LoaderState
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import RankRows, read_rank_rows
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
        compares = self._storage.verify != "none"
        rows = read_rank_rows(self._storage, self._manifest, self._rank, epoch, compares=compares)
        del rows.columns["pack"]  # Shard and row say it.
        return rows

    @property
    def epoch(self) -> int:
        """The current epoch."""
        found: int = self._epoch_view.item(0)
        return found

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

    def state(self, rows: RankRows, iteration: int) -> dict[str, Any]:
        """A state of the data set, at an iteration of these rows."""
        fingerprint, step = self._manifest.fingerprint, rows.step_of(iteration)
        return LoaderState(fingerprint=fingerprint, epoch=rows.epoch, iteration=iteration, step=step).value()

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
