"""Rank manifests: what each rank reads in each iteration of an epoch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.arrays import to_arrow
from packer_cli.files import atomic_file
from packer_cli.plan.cost import segment_sums
from packer_cli.plan.types import FILLER, Int64Array, Plan, Schedule
from packer_cli.shards.schema import RANK_SCHEMA, rank_name

_WRITERS = 8


def write_ranks(
    folder: Path,
    plan: Plan,
    schedule: Schedule,
    piece_loss_tokens: NDArray[np.int32],
    places: tuple[NDArray[np.int32], NDArray[np.int32]],
) -> None:
    """Write the manifests of all ranks for one epoch. O(iterations * GPUs).

    Args:
        folder: that of the epoch.
        schedule: one of the plan, or another of its packs on `plan.num_gpus`.
        places: (shard, row) of each pack, see `layout.pack_places`.
    """
    num_slots = np.bincount(schedule.slot_iteration, minlength=schedule.num_iterations)
    first_slot = np.cumsum(num_slots) - num_slots
    # Slots are sorted by iteration and first rank, so repeating each by its degree lists the GPUs in order.
    slots = np.repeat(np.arange(len(schedule.slot_pack)), schedule.slot_sp_size)
    slot_of_gpu = slots.reshape(schedule.num_iterations, plan.num_gpus)
    totals = _step_totals(plan, schedule, piece_loss_tokens)
    group = _iteration_groups(plan, schedule)
    checkpoint = np.array([g.checkpoint_layers for g in plan.groups], dtype=np.int16)
    shard, row = places

    def write(rank: int) -> None:
        slot = slot_of_gpu[:, rank]
        pack = schedule.slot_pack[slot]
        columns: dict[str, NDArray[Any]] = {
            "step": schedule.iteration_step,
            "iteration": np.arange(schedule.num_iterations),
            "group": group,
            "shard": shard[pack],
            "row": row[pack],
            "sp_size": schedule.slot_sp_size[slot],
            "sp_rank": rank - schedule.slot_first_rank[slot],
            "dp_rank": slot - first_slot,
            "dp_size": num_slots,
            "row_length": schedule.iteration_row_length,
            "checkpoint_layers": checkpoint[group],
            **{name: values[schedule.iteration_step] for name, values in totals.items()},
        }
        arrays = [to_arrow(columns[field.name].astype(str(field.type))) for field in RANK_SCHEMA]
        path = folder / rank_name(rank)
        with atomic_file(path) as file, pa.ipc.new_file(pa.PythonFile(file, mode="w"), RANK_SCHEMA) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=RANK_SCHEMA))

    # Most of the time goes into waiting for the disk.
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(plan.num_gpus)))


def is_rank_file(path: Path, num_iterations: int) -> bool:
    """Whether a rank's manifest is there, can be read, and has a row for each iteration."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        num_rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    except (OSError, pa.ArrowException):
        return False
    return num_rows == num_iterations and reader.schema.equals(RANK_SCHEMA)


def _iteration_groups(plan: Plan, schedule: Schedule) -> NDArray[np.int16]:
    """Group of each iteration: that of any pack in it."""
    is_pack = schedule.slot_pack != FILLER
    group = np.zeros(schedule.num_iterations, dtype=np.int16)
    group[schedule.slot_iteration[is_pack]] = plan.packs.group[schedule.slot_pack[is_pack]]
    return group


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
