"""Rank manifests: what each rank reads in each iteration of an epoch, and what all ranks have in common."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer_cli.files import atomic_file
from packer_cli.format.arrays import Columns, dtype_of, to_batch
from packer_cli.format.entries import RankBatches, RankFile
from packer_cli.format.ragged import offsets_of
from packer_cli.format.schema import RANK_SCHEMA, identify, iteration_schema, iterations_path, ranks_path
from packer_cli.format.shards import find_blocks
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import FILLER, Int64Array, PieceLoss, Plan, Schedule

_WRITERS = 8
MOST_FILES = 256
"""Most rank manifests of an epoch. Where more ranks read rows of their own, each file is of several."""
ROWS_PER_FILE = 1 << 20
"""Rows of such a file: 40 MiB."""


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
        self._num_gpus = plan.num_gpus
        self.first_ranks = np.flatnonzero(np.bincount(schedule.slot_first_gpu)).tolist()
        """The first of all ranks that always read the same."""

    @property
    def iterations(self) -> Columns:
        """Columns that all ranks have in common."""
        return _typed(self._of_iterations, iteration_schema(self._of_iterations))

    def of_ranks(self, firsts: Sequence[int]) -> Columns:
        """Make the rows of some of `first_ranks`, one rank after another."""
        slots = np.concatenate([self._slots[first] for first in firsts])
        return _typed(self._of_slots, RANK_SCHEMA, slots)

    def num_rows(self, first: int) -> int:
        """Count the rows of a rank."""
        return len(self._slots[first])

    def list_files(self) -> list[tuple[int, int]]:
        """List the (first, last) rank of each rank manifest: one of `first_ranks` each, where these are few."""
        num_rows = sum(map(self.num_rows, self.first_ranks))
        num_files = len(self.first_ranks)
        if num_files > MOST_FILES:
            num_files = min(MOST_FILES, -(-num_rows // ROWS_PER_FILE))
        cuts = np.linspace(0, len(self.first_ranks), num_files, endpoint=False).astype(int).tolist()
        borders = [*(self.first_ranks[cut] for cut in cuts), self._num_gpus]
        return [(begin, end - 1) for begin, end in itertools.pairwise(borders)]


def write_epoch(
    folder: Path, path: str, fingerprint: str, columns: EpochColumns, only: Collection[str] | None = None
) -> tuple[str, list[RankFile]]:
    """Write the files of one epoch; give the xxh3-128 of `iterations.arrow`, and the entries of the others.

    Args:
        folder: that of the set.
        path: folder of the epoch in it.
        fingerprint: of the generation that they belong to.
        only: the files to write; None is all.
    """

    making = (
        Lock()
    )  # Most of the time goes into waiting for the disk; threads of Python would get in each other's way.

    def write(name: str, own: pa.Schema, make: Callable[[], Columns], num_rows: Sequence[int]) -> _Written:
        if only is not None and name not in only:
            return "", memoryview(b"")
        schema = identify(own, fingerprint, name)
        with making:
            batch, content = to_batch(make(), schema), pa.BufferOutputStream()
            with pa.ipc.new_file(content, schema) as writer:
                for begin, end in itertools.pairwise(offsets_of(np.array(num_rows)).tolist()):
                    writer.write_batch(batch.slice(begin, end - begin))
        data = content.getvalue()
        with atomic_file(folder / name) as file:
            file.write(data)
        return file.hexdigest(), memoryview(data)

    def write_ranks(first: int, last: int) -> RankFile:
        own = columns.first_ranks[bisect_left(columns.first_ranks, first) : bisect_right(columns.first_ranks, last)]
        num_rows = [columns.num_rows(rank) for rank in own]
        xxh3, data = write(ranks_path(path, first, last), RANK_SCHEMA, lambda: columns.of_ranks(own), num_rows)
        if len(own) == 1 or not data:
            return RankFile(first=first, last=last, xxh3=xxh3)
        blocks = find_blocks(data)
        offsets = [*(begin for begin, *_ in blocks), sum(blocks[-1])]
        checksums = [xxhash.xxh3_128_hexdigest(data[begin:end]) for begin, end in itertools.pairwise(offsets)]
        batches = RankBatches(firsts=tuple(own), offsets=tuple(offsets), xxh3=tuple(checksums))
        return RankFile(first=first, last=last, xxh3=xxh3, batches=batches)

    common = columns.iterations
    schema = iteration_schema(common)
    with ThreadPoolExecutor(_WRITERS) as pool:
        iterations = pool.submit(write, iterations_path(path), schema, lambda: common, [len(common["step"])])
        ranks = [*pool.map(write_ranks, *zip(*columns.list_files(), strict=True))]
        return iterations.result()[0], ranks


_Written = tuple[str, memoryview]
"""xxh3-128 of a file, and its bytes; nothing of one that is not to be written."""


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
