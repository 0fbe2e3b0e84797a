"""What one rank reads in one epoch: the rows of its rank manifest, as arrays.

Price: about 70 bytes an iteration, read once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.checksums import check_bytes
from packer_cli.format.epochs import repeat_iterations
from packer_cli.format.marks import find_foreign
from packer_cli.loader.manifest import find_epoch
from packer_cli.loader.storage import Storage

ROW_COLUMNS = (
    "step",
    "iteration",
    "group",
    "shard",
    "row",
    "sp_size",
    "sp_rank",
    "dp_rank",
    "dp_size",
    "row_length",
    "checkpoint_layers",
    "global_num_samples",
    "global_num_loss_tokens",
)


_LOOK_AHEAD = 4096
"""Iterations."""


class Row(NamedTuple):
    """One iteration of one rank; the columns of `ranks/epoch-*/rank-*.arrow`, Python ints."""

    step: int
    iteration: int
    group: int
    shard: int
    row: int
    sp_size: int
    sp_rank: int
    dp_rank: int
    dp_size: int
    row_length: int
    checkpoint_layers: int
    global_num_samples: int
    global_num_loss_tokens: int


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The rows of one rank in one epoch."""

    epoch: int
    columns: dict[str, np.ndarray]
    """Name -> integers [i], one an iteration; the names are `ROW_COLUMNS`."""
    num_steps: int
    """Of the whole epoch."""

    _items: tuple[Callable[[int], Any], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Looked up once: a third of what a row costs.
        object.__setattr__(self, "_items", tuple(self.columns[name].item for name in ROW_COLUMNS))

    def __len__(self) -> int:
        return len(self.columns["step"])

    def next_shards(self, i: int, num: int) -> list[tuple[int, int]]:
        """The first `num` shards, as (group, shard), that are read from iteration `i` on. It looks a little ahead."""
        stop = min(i + _LOOK_AHEAD, len(self))
        shard = self.columns["shard"][i:stop].astype(np.int64)
        keys = (self.columns["group"][i:stop].astype(np.int64) << 32 | shard)[shard >= 0]
        first = np.sort(np.unique(keys, return_index=True)[1])
        return [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in keys[first[:num]]]

    def step_of(self, i: int) -> int:
        """The step of iteration `i`; `num_steps` for the iteration after the last."""
        step = self.columns["step"]
        return int(step[i]) if i < len(step) else self.num_steps

    def row(self, i: int) -> Row:
        """Iteration `i`."""
        return Row(*[item(i) for item in self._items])


def read_rank_rows(storage: Storage, manifest: dict[str, Any], rank: int, epoch: int) -> RankRows:
    """The rows of `rank` in `epoch`; an epoch that was not written is made of one that was (`permute_steps`).

    Steps are counted through the epoch, also where the first of them ran on another number of GPUs.

    Raises FormatError where the file is missing, is another's, or does not agree with the manifest.
    """
    entry, written = find_epoch(manifest, epoch)
    file = f"{entry['path']}/rank-{rank:05d}.arrow"

    def damaged(why: object) -> FormatError:
        return FormatError(f"{storage.name(file)!r} is damaged or incomplete ({why}); {storage.remedy}")

    try:
        data = storage.read(file)
        why = None if storage.verify == "none" else check_bytes(data, entry["rank_xxh3"][rank])
        reader = pa.ipc.open_file(data)
        why = find_foreign(reader.schema, manifest["fingerprint"], file) or why
        if why is not None:
            raise damaged(why)
        table = reader.read_all().select(ROW_COLUMNS)
        # Copied, so that no map outlives this call.
        columns = {
            name: np.array(to_numpy(column.combine_chunks()))
            for name, column in zip(ROW_COLUMNS, table.columns, strict=True)
        }
        del table, reader, data
    except (OSError, KeyError, pa.ArrowException) as error:
        raise damaged(error) from None
    rows = RankRows(epoch=epoch, columns=columns, num_steps=int(entry["num_steps"]))
    step = columns["step"]
    num_iterations = len(step)
    if num_iterations != entry["num_iterations"]:
        raise damaged(f"{num_iterations} iterations, hbpack.json says {entry['num_iterations']}")
    if not np.array_equal(columns["iteration"], np.arange(num_iterations)):
        raise damaged("its iterations are not 0, 1, 2, ...")
    # From -1 to the number of steps, so that the first and the last must be there; in [0, 1], but 1 at both ends.
    strides = np.diff(step, prepend=-1, append=rows.num_steps)
    if strides.min() < 0 or strides.max() > 1 or not strides[0] == strides[-1] == 1:
        raise damaged(f"its steps are not 0 to {rows.num_steps - 1} in order")
    if not written:
        return permute_steps(rows, int(manifest["seed"]))
    first_step = int(entry.get("first_step", 0))
    if first_step:
        columns["step"] = step + first_step
    return replace(rows, num_steps=first_step + rows.num_steps)


def permute_steps(rows: RankRows, seed: int) -> RankRows:
    """`rows` with whole steps in an order drawn from `seed` and `rows.epoch`, the same on every rank.

    The iterations of a step stay together and in order, so that a rank still meets its partners; steps and
    iterations are renumbered from 0.
    """
    take = repeat_iterations(seed, rows.epoch, rows.columns["step"])
    columns = {name: column[take] for name, column in rows.columns.items()}
    columns["step"] = np.cumsum(np.diff(columns["step"], prepend=columns["step"][:1]) != 0)
    columns["iteration"] = np.arange(len(rows))
    return replace(rows, columns=columns)
