"""One task of the write stage: the packs of one shard, gathered from the token store. Runs on a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.engine.ahead import one_ahead
from packer_cli.engine.parts import Sink
from packer_cli.format.arrays import to_arrow, to_lists
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.marks import identify, row_checksums
from packer_cli.format.schema import shard_schema
from packer_cli.plan.cost import Cost, segment_sums
from packer_cli.plan.types import Int64Array, Plan
from packer_cli.shards.layout import ShardRange
from packer_cli.tokens.store import Gathered, TokenStore

_TOKENS_PER_GATHER = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to make."""

    shard: ShardRange
    fingerprint: str
    """The set's; with the shard's path it decides every byte."""

    @property
    def name(self) -> str:
        """The shard's path."""
        return self.shard.path


class ShardWriter:
    """Gathers the packs of shards from the token store and writes them."""

    def __init__(self, plan: Plan, piece_loss_tokens: NDArray[np.int32], cost: Cost, store: TokenStore) -> None:
        self._plan = plan
        self._piece_loss_tokens = piece_loss_tokens
        self._cost = cost
        self._store = store
        self._schema = shard_schema(store.index.token_type)
        # Where blocks begin decides bytes: Arrow pads the columns of a batch cut from one with what follows.
        largest = PACKS_PER_BATCH * max(group.capacity for group in plan.groups)
        self._packs_per_block = PACKS_PER_BATCH * max(1, _TOKENS_PER_GATHER // largest)

    def write(self, task: ShardTask, sink: Sink) -> dict[str, Any]:
        """Write a shard.

        Price: reading and writing its bytes once; packs are gathered while those before them are written. Memory:
        three times `_TOKENS_PER_GATHER`, or 16 packs if those are more.
        """
        schema = identify(self._schema, task.fingerprint, task.shard.path)
        with (
            sink.file(task.shard.path, sync_early=True) as file,
            pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer,
        ):
            for blocks in one_ahead(self._gathered(task.shard)):
                for block in blocks:
                    named = block.replace_schema_metadata(schema.metadata)
                    for row in range(0, len(named), PACKS_PER_BATCH):
                        writer.write_batch(named.slice(row, PACKS_PER_BATCH))
        return {}

    def _gathered(self, shard: ShardRange) -> Iterator[list[pa.RecordBatch]]:
        """The blocks of a shard, a few million tokens at a time."""
        stop = shard.first_pack + shard.num_packs
        most_tokens = self._packs_per_block * self._plan.groups[shard.group].capacity
        at_once = self._packs_per_block * max(1, _TOKENS_PER_GATHER // most_tokens)
        for first in range(shard.first_pack, stop, at_once):
            yield self._blocks(first, min(first + at_once, stop))

    def _blocks(self, first: int, stop: int) -> list[pa.RecordBatch]:
        """Blocks of the packs first .. stop-1."""
        sample, start, length = self._pieces(first, stop)
        gathered = self._store.gather(sample, start, length)
        blocks, done = [], 0
        for begin in range(first, stop, self._packs_per_block):
            end = min(begin + self._packs_per_block, stop)
            until = done + int(self._pieces(begin, end)[2].sum(dtype=np.int64))
            blocks.append(self._rows(begin, end, gathered.cut(done, until)))
            done = until
        return blocks

    def _pieces(self, first: int, stop: int) -> tuple[Int64Array, Int64Array, NDArray[np.int32]]:
        """Sample, start and length of the pieces in the packs first .. stop-1, in order."""
        plan = self._plan
        members = plan.packs.pieces[plan.packs.offsets[first] : plan.packs.offsets[stop]]
        return plan.pieces.sample[members], plan.pieces.start[members], plan.pieces.length[members]

    def _rows(self, first: int, stop: int, gathered: Gathered) -> pa.RecordBatch:
        """Rows of the packs first .. stop-1, which hold these tokens."""
        plan = self._plan
        offsets = plan.packs.offsets[first : stop + 1]
        loss_tokens = self._piece_loss_tokens[plan.packs.pieces[offsets[0] : offsets[-1]]]
        offsets = offsets - offsets[0]
        sample, start, length = self._pieces(first, stop)
        tokens = segment_sums(length, offsets)
        work = segment_sums(np.square(length, dtype=np.int64), offsets) if plan.mask == "document" else tokens * tokens
        token_offsets = np.concatenate([[0], np.cumsum(tokens)])
        group = plan.packs.group[first:stop]
        loss_starts, loss_stops = gathered.spans_by_row(token_offsets)
        columns = [
            to_arrow(np.arange(first, stop, dtype=np.int64)),
            to_lists(token_offsets, gathered.input_ids),
            loss_starts,
            loss_stops,
            _cu_seqlens(offsets, length),
            to_lists(offsets, sample),
            to_lists(offsets, start.astype(np.int32)),
            to_lists(offsets, self._store.sources_of(sample)),
            to_arrow(group),
            to_arrow(np.array([g.sp_size for g in plan.groups], dtype=np.int16)[group]),
            to_arrow(np.array([g.checkpoint_layers for g in plan.groups], dtype=np.int16)[group]),
            to_arrow(tokens.astype(np.int32)),
            to_arrow(segment_sums(loss_tokens, offsets).astype(np.int32)),
            to_arrow(work),
            to_arrow(self._cost.quadratic * work + self._cost.linear * tokens),
            to_arrow(np.zeros(stop - first, dtype=np.int8)),
        ]
        batch = pa.record_batch(columns, names=self._schema.names[: len(columns)])
        return pa.record_batch([*columns, to_arrow(row_checksums(batch))], schema=self._schema)


def _cu_seqlens(offsets: NDArray[np.int64], length: NDArray[np.int32]) -> pa.ListArray:
    """For each pack, the running sum of its lengths with a leading 0."""
    num_packs = len(offsets) - 1
    ends = np.cumsum(length, dtype=np.int64)
    before = np.concatenate([[0], ends])[offsets[:-1]]
    values = np.zeros(len(length) + num_packs, dtype=np.int32)
    place = np.arange(len(length)) + np.repeat(np.arange(num_packs), np.diff(offsets)) + 1
    values[place] = ends - np.repeat(before, np.diff(offsets))
    return to_lists(offsets + np.arange(num_packs + 1), values)
