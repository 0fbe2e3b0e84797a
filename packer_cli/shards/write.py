"""One task of the write stage: gather the packs of one shard from the token store. Runs on a thread."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.arrays import to_arrow, to_lists
from packer_cli.files import temporary_file
from packer_cli.plan.cost import QUADRATIC, Cost, pack_tokens_and_work, parse_cost, segment_sums
from packer_cli.plan.types import Plan
from packer_cli.shards.layout import ShardRange
from packer_cli.shards.plan_file import PLAN_NAME, read_plan
from packer_cli.shards.schema import PACKS_PER_BATCH, SHARD_SCHEMA
from packer_cli.tokens.store import TokenStore

MARKERS = ".shards"
"""Folder, in the output, of what says that a shard is finished while the manifest is not yet written."""

_TOKENS_PER_GATHER = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker needs to make one shard."""

    shard: ShardRange
    folder: Path
    store: Path
    fingerprint: str
    """Of the plan; with the place of the shard it decides every byte."""


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """A finished shard."""

    num_bytes: int
    xxh3: str


def write_shard(task: ShardTask) -> tuple[ShardResult, Path]:
    """Write a shard under a temporary name; the caller commits it and writes its marker. Memory: a few batches."""
    plan, _, header = _plan(task.folder, task.fingerprint)
    cost = parse_cost(header["config"].get("cost", QUADRATIC))
    store = _store(task.store, task.fingerprint)
    shard = task.shard
    with (
        temporary_file(task.folder / shard.path) as (temporary, file),
        pa.ipc.new_file(pa.PythonFile(file, mode="w"), SHARD_SCHEMA) as writer,
    ):
        for first, last in _gathers(plan, shard.first_pack, shard.first_pack + shard.num_packs):
            batch = _pack_rows(plan, store, cost, first, last)
            for row in range(0, last - first, PACKS_PER_BATCH):
                writer.write_batch(batch.slice(row, PACKS_PER_BATCH))
    return ShardResult(num_bytes=file.num_bytes, xxh3=file.hexdigest()), temporary


def marker_of(task: ShardTask, result: ShardResult) -> dict[str, Any]:
    """What the marker of a shard holds: JSON values."""
    return {"fingerprint": task.fingerprint, "shard": vars(task.shard), "result": vars(result)}


def shard_marker(folder: Path, path: str) -> Path:
    """Where the marker of a shard stands."""
    return folder / MARKERS / (path.replace("/", "_") + ".json")


def finished_shard(task: ShardTask) -> ShardResult | None:
    """The result of an earlier run of the same task, if its file is still whole."""
    marker, path = shard_marker(task.folder, task.shard.path), task.folder / task.shard.path
    try:
        data = json.loads(marker.read_bytes())
        result = ShardResult(**data["result"])
        same = data["fingerprint"] == task.fingerprint and data["shard"] == vars(task.shard)
        return result if same and path.stat().st_size == result.num_bytes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@lru_cache(maxsize=1)
def _plan(folder: Path, fingerprint: str) -> tuple[Plan, NDArray[np.int32], dict[str, Any]]:
    return read_plan(folder / PLAN_NAME)


@lru_cache(maxsize=1)
def _store(folder: Path, fingerprint: str) -> TokenStore:
    return TokenStore.open(folder)


def _gathers(plan: Plan, first: int, stop: int) -> list[tuple[int, int]]:
    """Ranges of packs that are gathered together: whole record batches, a few million tokens."""
    ranges = []
    capacity = max(group.capacity for group in plan.groups)
    batches = max(1, _TOKENS_PER_GATHER // (PACKS_PER_BATCH * capacity))
    for begin in range(first, stop, batches * PACKS_PER_BATCH):
        ranges.append((begin, min(begin + batches * PACKS_PER_BATCH, stop)))
    return ranges


def _pack_rows(plan: Plan, store: TokenStore, cost: Cost, first: int, stop: int) -> pa.RecordBatch:
    """Rows of the packs first .. stop-1."""
    offsets = plan.packs.offsets[first : stop + 1]
    members = plan.packs.pieces[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    sample, start = plan.pieces.sample[members], plan.pieces.start[members]
    length = plan.pieces.length[members]
    tokens, work = pack_tokens_and_work(offsets, np.arange(len(members)), length)
    input_ids = np.empty(int(tokens.sum()), dtype=np.int32)
    loss_mask = np.empty(len(input_ids), dtype=np.int8)
    store.gather(sample, start, length, input_ids, loss_mask)
    token_offsets = np.concatenate([[0], np.cumsum(tokens)])
    mask_sums = segment_sums(loss_mask, token_offsets)
    numbers = np.arange(first, stop, dtype=np.int64)
    group = plan.packs.group[first:stop]
    columns = [
        to_arrow(numbers),
        to_lists(token_offsets, input_ids),
        to_lists(token_offsets, loss_mask),
        _cu_seqlens(offsets, length),
        to_lists(offsets, sample),
        to_lists(offsets, start.astype(np.int32)),
        to_lists(offsets, store.sources_of(sample)),
        to_arrow(group),
        to_arrow(np.array([g.sp_size for g in plan.groups], dtype=np.int16)[group]),
        to_arrow(np.array([g.checkpoint_layers for g in plan.groups], dtype=np.int16)[group]),
        to_arrow(tokens.astype(np.int32)),
        to_arrow(mask_sums.astype(np.int32)),
        to_arrow(work),
        to_arrow(cost.quadratic * work + cost.linear * tokens),
        to_arrow(np.zeros(len(numbers), dtype=np.int8)),
    ]
    return pa.record_batch(columns, schema=SHARD_SCHEMA)


def _cu_seqlens(offsets: NDArray[np.int64], length: NDArray[np.int32]) -> pa.ListArray:
    """For each pack, the running sum of its lengths with a leading 0."""
    num_packs = len(offsets) - 1
    ends = np.cumsum(length, dtype=np.int64)
    before = np.concatenate([[0], ends])[offsets[:-1]]
    values = np.zeros(len(length) + num_packs, dtype=np.int32)
    place = np.arange(len(length)) + np.repeat(np.arange(num_packs), np.diff(offsets)) + 1
    values[place] = ends - np.repeat(before, np.diff(offsets))
    return to_lists(offsets + np.arange(num_packs + 1), values)
