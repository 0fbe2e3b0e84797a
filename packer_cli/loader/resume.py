"""The place of a data set: the epoch, which its workers share, the epoch's rows, and the next iteration.

`PackedSampler` is that with which torchdata's StatefulDataLoader resumes exactly where it stopped.

Without it, torchdata saves how many indices were drawn, but not from which epoch, and skips as many in the next pass:
after an epoch that was over at the last save, it would skip the next epoch, or its start. Price: a few microseconds
per batch, in the training process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Sampler, get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.entries import Generation
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
        self.manifest = manifest
        self._rank = rank
        # In shared memory, so that set_epoch reaches persistent workers.
        self._shared_epoch = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._epoch_view = self._shared_epoch.numpy()
        self._epoch_view[:] = as_integer("epoch", epoch, least=0, most=MAX_EPOCH), 0
        self.has_sampler = False
        """Whether a `PackedSampler` was iterated, so that a StatefulDataLoader may be restored."""
        self._num_moves = 0
        self.is_counted = False
        """Whether anyone has asked for the length of an epoch."""
        self._begin()
        self._loaded = self._read(self.epoch)

    def _begin(self) -> None:
        self.position = 0
        """The iteration at which iterating continues."""
        self.next = 0
        """The iteration after the last one returned, by iterating or by []."""
        self.first = 0
        """The iteration at which the next pass of a sampler begins."""
        self.unused = 0
        """The iteration of a loaded state from which nothing has gone on yet; 0: there is none."""
        self._num_passes = 0

    def move(self, other: Place) -> None:
        """Go to the place in another version; a worker alone, since the process that made it does so itself."""
        self._storage, self.manifest, self._loaded = other._storage, other.manifest, other._loaded
        self._begin()
        self._num_moves += 1
        if get_worker_info() is None:
            self._epoch_view[:] = other.epoch, self._num_moves

    def require(self, epoch: int, manifest: Manifest) -> None:
        """Raise RuntimeError if someone iterates over this epoch or version, and another was gone to."""
        if self.epoch != epoch:
            raise RuntimeError(f"epoch {self.epoch} was set while iterating over epoch {epoch}: iterate again")
        if self.manifest is not manifest or self._epoch_view.item(1) > self._num_moves:
            raise RuntimeError("a state of another version was loaded while iterating: make the DataLoader again")

    def _read(self, epoch: int) -> RankRows:
        compares = self._storage.verify != "none"
        rows = read_rank_rows(self._storage, self.manifest, self._rank, epoch, compares=compares)
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
        epoch = as_integer("epoch", epoch, least=0, most=MAX_EPOCH)
        if epoch != self.rows.epoch:
            self._loaded = self._read(epoch)
            self._epoch_view[0] = epoch
            self._begin()

    def resume_at(self, iteration: int, num_passes: int = 1) -> None:
        """Go to an iteration of the current epoch, at which the next `num_passes` passes of a sampler begin."""
        self.position = self.next = self.first = iteration
        self._num_passes = num_passes

    def state(self, rows: RankRows, iteration: int) -> dict[str, Any]:
        """Make a state of the data set, at an iteration of these rows."""
        names = {name: getattr(self.manifest, name) for name in ("fingerprint", "planned_fingerprint")}
        return LoaderState(**names, epoch=rows.epoch, iteration=iteration, step=rows.step_of(iteration)).value()

    def begin_pass(self) -> None:
        """Count a new pass of a sampler; passes after those of `resume_at` cover the whole epoch."""
        self._num_passes -= 1
        if self._num_passes <= 0:
            self.first = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_epoch_view": None, "_loaded": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared_epoch.share_memory_()  # a plain pickle holds a copy; does nothing if it is already shared
        self._epoch_view = self._shared_epoch.numpy()
        self._loaded = self._read(self.epoch)


_WITHOUT_SAMPLER = (
    "to use a state that was saved without it, call ds.set_epoch(epoch of the last batch used) and, for the rest of "
    "that epoch, give sampler=range(its iteration + 1, len(ds))"
)


class PackedSampler(Sampler[int]):
    """The iterations of the current epoch, in order; after loading a state, first the remaining ones.

    Created by `PackedDataset.sampler`. Its state is the data set's, after the iterations drawn in the newest pass.
    """

    def __init__(self, place: Place, read: Callable[[Any], tuple[int, int, bool]]) -> None:
        """Begin at the place.

        Args:
            read: as `read_state`, of the data set, which goes to the version of the state.
        """
        self._place, self._read = place, read
        self._rows, self._next = place.rows, place.first

    def __len__(self) -> int:
        """Count the iterations of the whole epoch, even if fewer are left."""
        self._place.is_counted = True
        return len(self._place.rows)

    def __iter__(self) -> Iterator[int]:
        """Begin a pass. Its start is fixed now, not at its first index, since torchdata may save it before."""
        self._place.has_sampler, self._place.unused = True, 0
        self._rows, self._next = self._place.rows, self._place.first
        return self._draw(self._rows, self._next, self._place.manifest)

    def _draw(self, rows: RankRows, begin: int, manifest: Manifest) -> Iterator[int]:
        epoch = rows.epoch
        self._place.require(epoch, manifest)
        self._place.begin_pass()
        if begin and begin == len(rows):
            warnings.warn(
                f"epoch {epoch} was over when the loader's state was saved, so no batch is left; "
                f"call set_epoch({epoch + 1}) to continue",
                stacklevel=2,
            )
        for i in range(begin, len(rows)):
            self._next = i + 1
            yield i
            self._place.require(epoch, manifest)

    def state_dict(self) -> dict[str, Any]:
        """Return a state of the data set; torchdata calls this for each index that it draws for workers."""
        return self._place.state(self._rows, self._next)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Limit the next pass to the rest of a state's epoch, which may be empty.

        Raises:
            FormatError: the state is of another packed set, damaged, or was saved without this sampler.
            ValueError: the current epoch is neither that of the state nor, if that was over, the next one.
        """
        if state is None:
            raise FormatError(f"the loader's state was saved without sampler=ds.sampler(); {_WITHOUT_SAMPLER}")
        epoch, iteration, is_over = self._read(state)
        in_force = self._place.epoch
        if is_over and in_force == epoch + 1:
            iteration = 0
        elif in_force != epoch:
            raise ValueError(
                f"epoch is {in_force}, but the loader's state is at iteration {iteration} of epoch {epoch}: "
                f"call set_epoch({epoch}) before the pass, and begin the loop there"
            )
        # If the state was saved after the loop over an epoch had ended, torchdata begins two passes: one with the
        # state, and then a new one. Neither may repeat the epoch.
        self._place.resume_at(iteration, num_passes=2 if iteration and is_over else 1)


def is_left_to_sampler(place: Place) -> bool:
    """Whether a StatefulDataLoader restores the data set; its sampler knows what was used, workers what they read.

    Raises:
        ConfigError: it has no `PackedSampler`.
    """
    if not _is_called_by_loader():
        return False
    if not place.has_sampler:
        raise ConfigError(
            "a StatefulDataLoader would skip batches if it resumes after the end of an epoch: give it "
            f"sampler=ds.sampler(), from the first run on; {_WITHOUT_SAMPLER}"
        )
    return True


def _is_called_by_loader() -> bool:
    """Whether the caller is torchdata, which restores map-style data sets by itself, here or in a worker.

    False if it restores an IterableDataset around ours, which iterates without a sampler.
    """
    is_called = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torchdata.stateful_dataloader"):
            is_called = True
            names = frame.f_locals
            if _DatasetKind.Iterable in (names.get("dataset_kind"), getattr(names.get("self"), "_dataset_kind", None)):
                return False
        frame = frame.f_back
    return is_called


def read_state(found: LoaderState, manifest: Manifest, name: str) -> tuple[int, int, bool]:
    """Return (epoch, iteration, whether that is the end of the epoch) of a state.

    Args:
        name: of the packed set, for messages.

    Raises:
        FormatError: the state is of another packed set, or damaged.
    """
    if found.fingerprint != manifest.fingerprint:
        raise _of_another_set(found, manifest, name)
    epoch, iteration = found.epoch, found.iteration
    num_iterations = manifest.generation.find_epoch(epoch)[0].num_iterations
    if iteration > num_iterations:
        raise FormatError(
            f"the loader state is at iteration {iteration} of epoch {epoch}, which has {num_iterations}: "
            "it was changed, or is of another packed set"
        )
    return epoch, iteration, iteration == num_iterations


def begins_at(state: LoaderState, manifest: Manifest) -> bool:
    """Whether the set was rebalanced from the one of this state, at exactly its place."""
    origin, before = manifest.origin, _generation_of(state, manifest)
    if before is None or origin is None or state.fingerprint != origin.fingerprint:
        return False
    if origin.iteration == 0 and before.first_epoch <= state.epoch == origin.epoch - 1:  # The end of an epoch.
        return state.iteration == before.find_epoch(state.epoch)[0].num_iterations
    return (state.epoch, state.iteration) == (origin.epoch, origin.iteration)


def _generation_of(state: LoaderState, manifest: Manifest) -> Generation | None:
    return next((each for each in manifest.history if each.fingerprint == state.fingerprint), None)


def _of_another_set(state: LoaderState, manifest: Manifest, name: str) -> FormatError:
    begin = f"the loader state belongs to the packed set {state.fingerprint}, but {name} is {manifest.fingerprint}"
    origin, before = manifest.origin, _generation_of(state, manifest)
    if before is None or origin is None:
        return FormatError(f"{begin}: resume with the set with which the run began, or start over")
    begin += f", rebalanced from {before.num_gpus} to {manifest.num_gpus} GPUs"
    # Do not convert the state silently: a StatefulDataLoader would keep the old position with a new epoch.
    if begins_at(state, manifest):
        return FormatError(
            f"{begin} at exactly the place of this state: do not load it, since a new PackedDataset begins there "
            f"(epoch {origin.epoch}, step {origin.step})"
        )
    return FormatError(
        f"{begin} at another place (epoch {origin.epoch}, step {origin.step}): save this state as JSON, run "
        f"hbpack rebalance --gpus {manifest.num_gpus} --state FILE, and then do not load a state"
    )
