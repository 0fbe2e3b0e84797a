"""Rank manifests: what each rank reads in each iteration of an epoch, and what all ranks have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.files import atomic_file
from packer_cli.format.arrays import Columns, dtype_of, to_batch
from packer_cli.format.schema import RANK_SCHEMA, identify, iteration_schema, iterations_path, ranks_path
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import FILLER, Int64Array, PieceLoss, Plan, Schedule

_WRITERS = 8


class EpochColumns:
    """The micro-batches that each rank reads in one epoch, worked out once for all ranks. O(slots * GPUs of each)."""

    def __init__(self, plan: Plan, schedule: Schedule, piece_loss: PieceLoss) -> None:
        """Prepare the manifests of an epoch.

        Args:
            schedule: one of the plan, or another of its packs on `plan.num_gpus`.
        """
        begins, step = schedule.begins_replica, schedule.iteration_step
        num_replicas = np.bincount(schedule.slot_iteration[begins], minlength=schedule.num_iterations)
        first_replica = np.cumsum(num_replicas) - num_replicas
        of_steps = _step_totals(plan, schedule, piece_loss)
        self._of_iterations = {"step": step, "num_replicas": num_replicas}
        self._of_iterations |= {name: values[step] for name, values in of_steps.items()}
        if plan.pieces.of_items:
            self._of_iterations["most_items"] = _most_items(plan, schedule)
        self._of_slots = {
            "iteration": schedule.slot_iteration,
            "pack": schedule.slot_pack,
            "group": schedule.slot_group,
            "first_gpu": schedule.slot_first_gpu,
            "dp_rank": np.cumsum(begins) - 1 - first_replica[schedule.slot_iteration],
            "row_length": schedule.slot_row_length,
        }
        self._slots = _slots_of_gpus(plan, schedule)
        first = np.flatnonzero(np.bincount(schedule.slot_first_gpu)).tolist()
        self.ranks = [(begin, end - 1) for begin, end in itertools.pairwise([*first, plan.num_gpus])]
        """(first, last) of ranks that always read the same."""

    def of_file(self, folder: str) -> dict[str, tuple[pa.Schema, Callable[[], Columns]]]:
        """List the schema of each file of the epoch and the function that makes its columns, by path.

        Args:
            folder: of the epoch, in the set.
        """
        schema = iteration_schema(self._of_iterations)
        files: dict[str, tuple[pa.Schema, Callable[[], Columns]]]
        files = {iterations_path(folder): (schema, partial(_typed, self._of_iterations, schema))}
        for first, last in self.ranks:
            make = partial(_typed, self._of_slots, RANK_SCHEMA, self._slots[first])
            files[ranks_path(folder, first, last)] = RANK_SCHEMA, make
        return files


def write_epoch(
    folder: Path, path: str, fingerprint: str, columns: EpochColumns, only: Collection[str] | None = None
) -> dict[str, str]:
    """Write the files of one epoch; gives the xxh3-128 of each, by path.

    Args:
        folder: that of the set.
        path: folder of the epoch in it.
        fingerprint: of the generation that they belong to.
        only: the files to write; None is all.
    """
    files = {name: file for name, file in columns.of_file(path).items() if only is None or name in only}

    def write(name: str) -> str:
        own, make = files[name]
        schema = identify(own, fingerprint, name)
        with making:
            content = pa.BufferOutputStream()
            with pa.ipc.new_file(content, schema) as writer:
                writer.write_batch(to_batch(make(), schema))
        with atomic_file(folder / name) as file:
            file.write(content.getvalue())
        return file.hexdigest()

    # Most of the time goes into waiting for the disk. The rest is Python, for which threads would only get in each
    # other's way.
    making = Lock()
    with ThreadPoolExecutor(_WRITERS) as pool:
        return dict(zip(files, pool.map(write, files), strict=True))


def _slots_of_gpus(plan: Plan, schedule: Schedule) -> Sequence[Int64Array]:
    """List the slots of each GPU, rising."""
    gpus = plan.slot_gpus(schedule)
    slots = np.repeat(np.arange(len(gpus)), gpus)
    if plan.lockstep != 1:
        # Slots are sorted by iteration and first GPU, so each iteration has listed the GPUs in order.
        return list(slots.reshape(schedule.num_iterations, plan.num_gpus).T)
    gpu = schedule.slot_first_gpu[slots] + np.arange(len(slots)) - (np.cumsum(gpus) - gpus)[slots]
    ends = np.cumsum(np.bincount(gpu, minlength=plan.num_gpus))
    return np.split(slots[np.argsort(gpu, kind="stable")], ends[:-1])


def _typed(columns: Columns, schema: pa.Schema, rows: slice | Int64Array = slice(None)) -> Columns:
    """Take these rows of the columns of a schema, by default all, in its types."""
    return {field.name: columns[field.name][rows].astype(dtype_of(field.type)) for field in schema}


def _step_totals(plan: Plan, schedule: Schedule, piece_loss: PieceLoss) -> dict[str, NDArray[Any]]:
    """Sum up the numbers that loss normalizers need, for each step ([s]), over all ranks."""
    is_pack = schedule.slot_pack != FILLER
    pack = schedule.slot_pack[is_pack]
    step = schedule.iteration_step[schedule.slot_iteration[is_pack]]
    packs = plan.packs.offsets, plan.packs.pieces
    by_pack = {
        "global_num_packs": np.ones(len(plan.packs), dtype=np.int64),
        "global_num_samples": plan.pieces.num_samples(plan.packs),
        "global_num_tokens": pack_sums(plan.pieces.length, *packs),
        "global_num_loss_tokens": pack_sums(piece_loss.tokens, *packs),
    }
    if plan.pieces.of_items:
        by_pack["global_num_items"] = np.diff(plan.packs.offsets)
    if piece_loss.weights is not None:
        weights = np.add.reduceat(piece_loss.weights[plan.packs.pieces], plan.packs.offsets[:-1])
        by_pack["global_loss_weight"] = weights
    totals: dict[str, NDArray[Any]] = {}
    for name, values in by_pack.items():
        totals[name] = np.zeros(schedule.num_steps, dtype=values.dtype)
        np.add.at(totals[name], step, values[pack])
    if schedule.step_seconds is not None:
        totals["step_seconds"] = schedule.step_seconds
    return totals


def _most_items(plan: Plan, schedule: Schedule) -> Int64Array:
    """Count the items of the pack that holds the most, among the packs of each iteration: int64[i]."""
    is_pack = schedule.slot_pack != FILLER
    most = np.zeros(schedule.num_iterations, dtype=np.int64)
    np.maximum.at(most, schedule.slot_iteration[is_pack], np.diff(plan.packs.offsets)[schedule.slot_pack[is_pack]])
    return most
