"""The rows of one rank in one epoch. Price: about 80 bytes per micro-batch, read once per epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import Columns, RankFileError, RankRow, as_epoch, read_rows
from packer_cli.loader.storage import Storage

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
