"""Rank manifests: what each rank reads in each iteration of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.files import atomic_file
from packer_cli.format.arrays import to_arrow
from packer_cli.format.marks import identify
from packer_cli.format.schema import RANK_SCHEMA, rank_path
from packer_cli.plan.cost import segment_sums
from packer_cli.plan.types import FILLER, Int64Array, Plan, Schedule

_WRITERS = 8


class RankColumns:
    """What each rank reads in one epoch, worked out once for all of them. O(iterations * GPUs)."""

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        piece_loss_tokens: NDArray[np.int32],
        places: tuple[NDArray[np.int32], NDArray[np.int32]],
    ) -> None:
        """Prepare the manifests of an epoch.

        Args:
            schedule: one of the plan, or another of its packs on `plan.num_gpus`.
            places: (shard, row) of each pack, see `layout.pack_places`.
        """
        self._schedule = schedule
        self._num_slots = np.bincount(schedule.slot_iteration, minlength=schedule.num_iterations)
        self._first_slot = np.cumsum(self._num_slots) - self._num_slots
        # Slots are sorted by iteration and first rank, so repeating each by its degree lists the GPUs in order.
        slots = np.repeat(np.arange(len(schedule.slot_pack)), plan.slot_degrees(schedule))
        self._slot_of_gpu = slots.reshape(schedule.num_iterations, plan.num_gpus)
        self._totals = _step_totals(plan, schedule, piece_loss_tokens)
        self._degree = plan.slot_degrees(schedule)
        self._checkpoint = np.array([g.checkpoint_layers for g in plan.groups], dtype=np.int16)[schedule.slot_group]
        self._shard, self._row = places

    def of(self, rank: int) -> dict[str, NDArray[Any]]:
        """The columns of a rank's manifest: name -> [i]."""
        schedule = self._schedule
        slot = self._slot_of_gpu[:, rank]
        pack = schedule.slot_pack[slot]
        columns: dict[str, NDArray[Any]] = {
            "step": schedule.iteration_step,
            "iteration": np.arange(schedule.num_iterations),
            "group": schedule.slot_group[slot],
            "shard": self._shard[pack],
            "row": self._row[pack],
            "sp_size": self._degree[slot],
            "sp_rank": rank - schedule.slot_first_gpu[slot],
            "dp_rank": slot - self._first_slot,
            "dp_size": self._num_slots,
            "row_length": schedule.slot_row_length[slot],
            "checkpoint_layers": self._checkpoint[slot],
            **{name: values[schedule.iteration_step] for name, values in self._totals.items()},
        }
        return {field.name: columns[field.name].astype(str(field.type)) for field in RANK_SCHEMA}


def write_ranks(
    folder: Path, path: str, fingerprint: str, columns: RankColumns, ranks: Sequence[int]
) -> tuple[str, ...]:
    """Write the manifests of ranks for one epoch; gives the xxh3-128 of each.

    Args:
        folder: that of the set.
        path: folder of the epoch in it.
        fingerprint: of the generation that they belong to.
    """

    def write(rank: int) -> str:
        name = rank_path(path, rank)
        schema = identify(RANK_SCHEMA, fingerprint, name)
        arrays = [to_arrow(values) for values in columns.of(rank).values()]
        with atomic_file(folder / name) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        return file.hexdigest()

    # Most of the time goes into waiting for the disk.
    with ThreadPoolExecutor(_WRITERS) as pool:
        return tuple(pool.map(write, ranks))


def _step_totals(plan: Plan, schedule: Schedule, piece_loss_tokens: NDArray[np.int32]) -> dict[str, Int64Array]:
    """What loss normalizers need, for each step (int64[s]), over all ranks."""
    is_pack = schedule.slot_pack != FILLER
    pack = schedule.slot_pack[is_pack]
    step = schedule.iteration_step[schedule.slot_iteration[is_pack]]
    members = plan.packs.pieces
    by_pack = {
        "global_num_samples": np.diff(plan.packs.offsets),
        "global_num_tokens": segment_sums(plan.pieces.length[members], plan.packs.offsets),
        "global_num_loss_tokens": segment_sums(piece_loss_tokens[members], plan.packs.offsets),
    }
    totals = {}
    for name, values in by_pack.items():
        totals[name] = np.zeros(schedule.num_steps, dtype=np.int64)
        np.add.at(totals[name], step, values[pack])
    return totals
