"""Rank manifests: what one rank reads in one epoch, a row an iteration.

Price: about 70 bytes an iteration, read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import to_numpy
from packer_cli.format.checksums import check_bytes
from packer_cli.format.epochs import repeat_iterations
from packer_cli.format.manifest import EpochInfo
from packer_cli.format.marks import find_foreign
from packer_cli.format.schema import RANK_SCHEMA, rank_path

Columns = dict[str, NDArray[Any]]
"""Name -> integers [i], one an iteration; the names are those of `RANK_SCHEMA`."""


class RankRow(NamedTuple):
    """One iteration of one rank: the columns of `RANK_SCHEMA`, Python ints."""

    step: int
    iteration: int
    group: int
    shard: int
    """-1: a filler, the rank has no pack in this iteration."""
    row: int
    sp_size: int
    sp_rank: int
    dp_rank: int
    dp_size: int
    row_length: int
    checkpoint_layers: int
    global_num_samples: int
    global_num_tokens: int
    global_num_loss_tokens: int


def read_rank(data: pa.Buffer, entry: EpochInfo, rank: int, fingerprint: str, *, compares: bool = True) -> Columns:
    """The rows of a rank in an epoch that was written, as they were written; copies, so that `data` may go.

    Args:
        data: the whole file, `rank_path(entry.path, rank)`.
        fingerprint: of the set, or of its generation.
        compares: whether the checksum of the file is compared; all else is checked always.

    Raises:
        ValueError: what is wrong with the file, in a few words.
    """
    why = check_bytes(data, entry.rank_xxh3[rank]) if compares else None
    try:
        reader = pa.ipc.open_file(data)
        why = find_foreign(reader.schema, fingerprint, rank_path(entry.path, rank)) or why
        if why is None and not reader.schema.equals(RANK_SCHEMA):
            why = "it has other columns"
        if why is not None:
            raise ValueError(why)
        table = reader.read_all()
        columns = {name: np.array(to_numpy(table.column(name).combine_chunks())) for name in RankRow._fields}
    except (OSError, pa.ArrowException) as error:
        raise ValueError(why or str(error)) from None
    _check_order(columns, entry.num_iterations, entry.num_steps)
    return columns


def _check_order(columns: Columns, num_iterations: int, num_steps: int) -> None:
    iteration, step = columns["iteration"], columns["step"]
    if len(iteration) != num_iterations:
        raise ValueError(f"{len(iteration)} iterations, hbpack.json says {num_iterations}")
    if not np.array_equal(iteration, np.arange(num_iterations)):
        raise ValueError("its iterations are not 0, 1, 2, ...")
    # From -1 to the number of steps, so that the first and the last must be there; in [0, 1], but 1 at both ends.
    strides = np.diff(step, prepend=-1, append=num_steps)
    if strides.min() < 0 or strides.max() > 1 or not strides[0] == strides[-1] == 1:
        raise ValueError(f"its steps are not 0 to {num_steps - 1} in order")


def as_epoch(columns: Columns, entry: EpochInfo, seed: int, epoch: int, *, is_written: bool) -> Columns:
    """Rows of an epoch that was written, as `epoch` has them: that very epoch, or one that repeats it.

    Steps are counted through the epoch, also where the first of them ran on another number of GPUs.

    Args:
        seed: of the set.
        is_written: whether `epoch` is that very epoch, as `Generation.find_epoch` says.
    """
    if is_written:
        return {**columns, "step": columns["step"] + entry.first_step}
    return repeat_rows(columns, seed, epoch)


def repeat_rows(columns: Columns, seed: int, epoch: int) -> Columns:
    """Rows of a whole epoch that was written, as an epoch that was not takes them: whole steps in another order.

    The order is the same on every rank, and the iterations of a step stay together and in order, so that a rank still
    meets its partners; steps and iterations are numbered from 0 again.

    Args:
        seed: of the set.
        epoch: which the rows are for.
    """
    take = repeat_iterations(seed, epoch, columns["step"])
    repeated = {name: column[take] for name, column in columns.items()}
    step = repeated["step"]
    return {
        **repeated,
        "step": np.cumsum(np.diff(step, prepend=step[:1]) != 0),
        "iteration": np.arange(len(take)),
    }
