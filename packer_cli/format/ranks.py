"""Rank manifests: what one rank reads in one epoch, a row a micro-batch.

Where all GPUs run in lockstep, every iteration is one row. Price: about 80 bytes a row, read once; on disk, 44 an
iteration of all ranks together, and 30 a row of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns, to_numpy
from packer_cli.format.checksums import check_bytes, require_damage
from packer_cli.format.entries import EpochInfo
from packer_cli.format.epochs import repeat_iterations
from packer_cli.format.manifest import Manifest, SetFolder
from packer_cli.format.schema import RANK_SCHEMA, find_foreign, iteration_schema, iterations_path


class RankRow(NamedTuple):
    """One micro-batch of one rank; Python ints."""

    step: int
    iteration: int
    group: int
    shard: int
    """-1: a filler, the rank has no pack."""
    row: int
    place: int
    """Number of the rank's GPU in its replica, see `Layout.place`."""
    dp_rank: int
    """Number of the rank's replica in the iteration."""
    dp_size: int
    """Replicas of the iteration, which may have unlike degrees."""
    row_length: int
    global_num_packs: int
    global_num_samples: int
    global_num_tokens: int
    global_num_loss_tokens: int
    global_loss_weight: float = 0.0
    """Sum of the weights of the step's loss tokens; their number in a set without weights."""
    global_num_items: int = 0
    """Items of the step, in a set with trees; else 0."""
    most_items: int = 0
    """Items of the pack that holds the most, among the iteration's packs, in a set with trees; else 0."""


def read_iterations(data: pa.Buffer, entry: EpochInfo, fingerprint: str, *, compares: bool = True) -> Columns:
    """Read the facts that all ranks have in common in an epoch that was written: the columns of `iteration_schema`,
    copied.

    Args:
        data: the whole file, `iterations_path(entry.path)`.
        fingerprint: of the set, or of its generation.
        compares: whether the checksum of the file is compared; all else is checked always.

    Raises:
        ValueError: what is wrong with the file, in a few words.
    """
    xxh3 = entry.iterations_xxh3 if compares else None
    columns = _read(data, iterations_path(entry.path), xxh3, fingerprint, iteration_schema)
    step = columns["step"]
    if len(step) != entry.num_iterations:
        raise ValueError(f"{len(step)} iterations, hbpack.json says {entry.num_iterations}")
    if not _counts_up(step, entry.num_steps):
        raise ValueError(f"its steps are not 0 to {entry.num_steps - 1} in order")
    return columns


def _counts_up(values: NDArray[np.int64], length: int) -> bool:
    """Whether these are 0 to length - 1 in order, each once or more."""
    # From -1 to the length, so that the first and the last must be there; in [0, 1], but 1 at both ends.
    strides = np.diff(values, prepend=-1, append=length)
    return bool(strides.min() >= 0 and strides.max() <= 1 and strides[0] == strides[-1] == 1)


def read_rank(files: SetFolder, entry: EpochInfo, rank: int, fingerprint: str, *, compares: bool = True) -> Columns:
    """Read the manifest of a rank in an epoch that was written: the columns of `RANK_SCHEMA`, copied.

    Args:
        fingerprint, compares: as for `read_iterations`. Rows in a part of a file are always compared.

    Raises:
        OSError, ValueError: what is wrong with the file, in a few words.
    """
    path, xxh3, span = entry.find_rank(rank)
    if span is None:
        data = files.read(path)
        columns = _read(data, path, xxh3 if compares else None, fingerprint, lambda names: RANK_SCHEMA)
    else:
        columns = _copied(pa.ipc.read_record_batch(files.read(path, xxh3, span), RANK_SCHEMA))
    if not _counts_up(columns["iteration"], entry.num_iterations):
        raise ValueError(f"its iterations are not 0 to {entry.num_iterations - 1} in order")
    return columns


def _read(
    data: pa.Buffer, path: str, xxh3: str | None, fingerprint: str, schema_of: Callable[[list[str]], pa.Schema]
) -> Columns:
    why = check_bytes(data, xxh3) if xxh3 else None
    try:
        reader = pa.ipc.open_file(data)
        why = find_foreign(reader.schema, fingerprint, path) or why
        schema = schema_of(reader.schema.names)
        if why is None and not reader.schema.equals(schema):
            why = "it has other columns"
        if why is not None:
            raise ValueError(why)
        return _copied(reader.get_batch(0))
    except (OSError, pa.ArrowException) as error:
        require_damage(error)
        raise ValueError(why or str(error)) from None


def _copied(batch: pa.RecordBatch) -> Columns:
    return {name: np.array(to_numpy(batch.column(name))) for name in batch.schema.names}


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The rows of one rank in one epoch. Steps are counted through the epoch, whatever ran on other GPUs before."""

    epoch: int
    columns: Columns
    """The fields of `RankRow`; `pack`, -1 for a filler; and `step_seconds` if steps have any."""
    num_steps: int
    """Steps of the whole epoch."""
    firsts: NDArray[np.int64]
    """int64[i]: first row of each iteration."""

    def __len__(self) -> int:
        return len(self.firsts)

    def rows_of(self, i: int) -> range:
        """Return the rows of iteration `i`, one or more."""
        first = self.firsts.item(i)
        return range(first, self.firsts.item(i + 1) if i + 1 < len(self.firsts) else len(self.columns["step"]))

    def step_of(self, i: int) -> int:
        """Return the step of iteration `i`; `num_steps` for the iteration after the last."""
        return int(self.columns["step"][self.firsts[i]]) if i < len(self) else self.num_steps

    def row(self, i: int) -> RankRow:
        """Return row `i`."""
        return RankRow(*[self.columns[name].item(i) for name in RankRow._fields])


def read_rank_rows(
    files: SetFolder, manifest: Manifest, rank: int, epoch: int, name: str = "epoch", *, compares: bool = True
) -> RankRows:
    """Read the rows of a rank in an epoch; one that was not written repeats one that was, in another order.

    Args:
        name: what asked for the epoch, for messages.
        compares: as for `read_iterations`.

    Raises:
        ConfigError: the set does not hold the epoch.
        FormatError: a file is missing or damaged, or belongs to another set or rank.
    """
    entry, is_written = manifest.generation.find_epoch(epoch, name)
    path = iterations_path(entry.path)
    with files.reading(path):
        iterations = read_iterations(files.read(path), entry, manifest.fingerprint, compares=compares)
    with files.reading(entry.find_rank(rank).path):
        of_rank = read_rank(files, entry, rank, manifest.fingerprint, compares=compares)
        columns = _rows(iterations, of_rank, manifest, rank)
    if is_written:
        columns["step"] = columns["step"] + entry.first_step
    else:
        columns = repeat_rows(columns, manifest.seed, epoch)
    firsts = np.flatnonzero(np.diff(columns["iteration"], prepend=-1))
    return RankRows(epoch=epoch, columns=columns, num_steps=entry.first_step + entry.num_steps, firsts=firsts)


def _rows(iterations: Columns, of_rank: Columns, manifest: Manifest, rank: int) -> Columns:
    iteration, group = of_rank["iteration"], of_rank["group"]
    if manifest.lockstep != 1 and len(iteration) != len(iterations["step"]):
        raise ValueError("it has several micro-batches in an iteration, though the GPUs run in lockstep")
    if len(iteration) != len(iterations["step"]):
        iterations = {name: values[iteration] for name, values in iterations.items()}
    if not ((group >= 0) & (group < len(manifest.groups))).all():
        raise ValueError("it names groups that the set does not have")
    of_group, shard, row = locate_packs(manifest, of_rank["pack"])
    if ((of_group != group) & (shard >= 0)).any():
        raise ValueError("it names packs of other groups")
    num_gpus = np.array([each.layout.num_gpus for each in manifest.groups], dtype=np.int32)[group]
    place = rank - of_rank["first_gpu"]
    if not ((place >= 0) & (place < num_gpus)).all():
        raise ValueError(f"rank {rank} has no part in some of its iterations")
    columns = {
        **dict.fromkeys(("global_num_items", "most_items"), np.broadcast_to(np.int64(0), len(iteration))),
        **iterations,
        **of_rank,
        "shard": shard,
        "row": row,
        "place": place,
        "dp_size": iterations["num_replicas"],
        "global_loss_weight": iterations.get("global_loss_weight", iterations["global_num_loss_tokens"]),
    }
    return {name: columns[name] for name in (*RankRow._fields, "pack", "step_seconds") if name in columns}


def locate_packs(
    manifest: Manifest, pack: NDArray[np.int64]
) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.int32]]:
    """Find (group, shard in its group, row) of each pack; -1 for a filler. Raises ValueError for unknown packs."""
    shards = [(g, k, shard) for g, each in enumerate(manifest.groups) for k, shard in enumerate(each.shards)]
    # Packs are numbered through the shards of one group after another. The last entries serve fillers, of pack -1.
    first = np.array([*(shard.first_pack for _, _, shard in shards), 0])
    stop = np.array([*(shard.first_pack + shard.num_packs for _, _, shard in shards), 0])
    number = np.array([*(k for _, k, _ in shards), -1], dtype=np.int32)
    of_group = np.array([*(g for g, _, _ in shards), -1], dtype=np.int16)
    found = np.searchsorted(first[:-1], pack, side="right") - 1
    if len(pack) and (pack.min() < -1 or (pack >= stop[found]).any()):
        raise ValueError("it names packs that the set does not have")
    return of_group[found], number[found], (pack - first[found]).astype(np.int32)


def repeat_rows(columns: Columns, seed: int, epoch: int) -> Columns:
    """Order the rows of a whole epoch that was written as one that was not takes them: whole steps in another order.

    The order is the same on every rank, and the iterations of a step stay together and in order, so that a rank still
    meets its partners; steps and iterations are numbered from 0 again.

    Args:
        seed: of the set.
        epoch: which the rows are for.
    """
    take = repeat_iterations(seed, epoch, columns["step"])
    repeated = {name: column[take] for name, column in columns.items()}
    return {
        **repeated,
        "step": _renumbered(repeated["step"]),
        "iteration": _renumbered(repeated["iteration"]),
    }


def _renumbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace runs of equal values by 0, 1, 2, ..."""
    return np.cumsum(np.diff(values, prepend=values[:1]) != 0)
