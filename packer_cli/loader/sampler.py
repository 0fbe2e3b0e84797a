"""The sampler with which a StatefulDataLoader of torchdata goes on where it stopped, wherever that was.

Without it torchdata keeps how many indices were drawn, but not of which epoch, and skips as many of the next pass: an
epoch that was over at the last save would take the next one, or its start, along. Price: a few microseconds a batch,
in the process that trains.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.utils.data import Sampler
from torch.utils.data.dataloader import _DatasetKind

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.manifest import Manifest
from packer_cli.format.state import LoaderState
from packer_cli.loader.place import Place
from packer_cli.loader.state import read_state

ANOTHER_WAY = (
    "a state that was saved without it can be used so: ds.set_epoch(epoch of the last batch that was used) and, for "
    "the rest of that epoch, sampler=range(its iteration + 1, len(ds))"
)


class PackedSampler(Sampler[int]):
    """The iterations of the epoch in force, in order; after a state was loaded, first those that are left.

    Made by `PackedDataset.sampler`. Its state is that of the data set: what was drawn in the newest pass.
    """

    def __init__(self, place: Place, manifest: Manifest, name: str) -> None:
        self._place = place
        self._manifest = manifest
        self._name = name
        self._pass = _Pass(place)

    def __len__(self) -> int:
        """Iterations of the whole epoch, also where fewer are left."""
        return len(self._place.rows)

    def __iter__(self) -> Iterator[int]:
        """A pass; it knows now, not with its first index, where it begins, since torchdata saves that too."""
        self._place.has_sampler = True
        self._pass = _Pass(self._place)
        return self._pass

    def state_dict(self) -> dict[str, Any]:
        """As that of the data set; torchdata calls it with each index that it draws for workers."""
        rows, iteration = self._pass.rows, self._pass.next
        fingerprint, step = self._manifest.fingerprint, rows.step_of(iteration)
        return LoaderState(fingerprint=fingerprint, epoch=rows.epoch, iteration=iteration, step=step).value()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Have the next pass hold what is left of the epoch of a state: nothing, if that was over.

        Raises:
            FormatError: the state is of another packed set, damaged, or was saved without this sampler.
            ValueError: another epoch is in force; but the one after an epoch that was over may begin.
        """
        if state is None:
            raise FormatError(f"the loader's state was saved without sampler=ds.sampler(); {ANOTHER_WAY}")
        epoch, iteration, is_over = read_state(state, self._manifest, self._name)
        in_force = self._place.epoch
        if is_over and in_force == epoch + 1:
            iteration = 0
        elif in_force != epoch:
            raise ValueError(
                f"epoch is {in_force}, and the loader's state is at iteration {iteration} of epoch {epoch}: "
                f"call set_epoch({epoch}) before the pass, and begin the loop there"
            )
        # Of an epoch that was over, torchdata begins two passes, if the loop had ended when the state was saved: one
        # with the state, and then one anew. Neither may repeat the epoch.
        self._place.go_on(iteration, num_passes=2 if iteration and is_over else 1)


class _Pass(Iterator[int]):
    """One pass over what is left of an epoch."""

    def __init__(self, place: Place) -> None:
        self.rows = place.rows
        self.next = place.first
        """After the last iteration that was drawn."""
        self._place = place
        self._has_begun = False

    def __next__(self) -> int:
        epoch = self.rows.epoch
        if self._place.epoch != epoch:
            raise RuntimeError(f"epoch {self._place.epoch} was set while epoch {epoch} was iterated: iterate again")
        if not self._has_begun:
            self._has_begun = True
            self._place.begin_pass()
            if self.next and self.next == len(self.rows):
                warnings.warn(
                    f"epoch {epoch} was over when the loader's state was saved: no batch is left of it; "
                    f"set_epoch({epoch + 1}) goes on",
                    stacklevel=2,
                )
        if self.next >= len(self.rows):
            raise StopIteration
        self.next += 1
        return self.next - 1


def is_left_to_sampler(place: Place) -> bool:
    """Whether a StatefulDataLoader restores the data set: its sampler knows what was used, a worker only what it read.

    Raises:
        ConfigError: it has no `PackedSampler`.
    """
    if not _is_called_by_loader():
        return False
    if not place.has_sampler:
        raise ConfigError(
            "a StatefulDataLoader would skip batches where it goes on after the end of an epoch: give it "
            f"sampler=ds.sampler(), from the first run on; {ANOTHER_WAY}"
        )
    return True


def _is_called_by_loader() -> bool:
    """Whether torchdata calls, in this process or a worker, which restores a map-style data set unasked.

    Not where it restores an IterableDataset around ours: that iterates by itself, without a sampler.
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
