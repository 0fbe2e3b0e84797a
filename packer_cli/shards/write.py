"""One task of the write stage: the packs of one shard, gathered from the token store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from packer_cli.engine.sink import FinishedPart, Sink, write_part
from packer_cli.format.arrays import Columns, columns_of, to_batch
from packer_cli.format.checksums import CHECKSUM, row_checksums
from packer_cli.format.constants import PACKS_PER_BATCH, PLAN_NAME
from packer_cli.format.ragged import Lists, borders_of, offsets_of
from packer_cli.format.schema import identify, index_schema, shard_path
from packer_cli.plan.core.cost import Cost, segment_sums
from packer_cli.plan.core.types import Int64Array, PieceLoss, Pieces, Plan
from packer_cli.shards.own_store import open_own_store
from packer_cli.shards.plan_file import PlanHeader, arrow_file, read_plan, read_plan_header
from packer_cli.tokens.store import TokenStore

_TOKENS_PER_GATHER = 2**20


class ShardTask(NamedTuple):
    """One shard to make: a range of pack ids of one group."""

    name: str
    """The shard's path."""
    group: int
    first_pack: int
    num_packs: int
    fingerprint: str
    """The set's; with the shard's path it decides every byte."""


_BYTES_PER_PIECE = 36
"""With two loss spans: a document has one, a chat one for each answer."""
_BYTES_PER_BRANCH = 70
"""With two loss spans, too, and two segments."""
_BYTES_PER_PACK = 64


def lay_out(
    plan: Plan, pack_tokens: Int64Array, shard_size: int, token_bytes: int, fingerprint: str
) -> list[ShardTask]:
    """Cut each group's packs into shards of about `shard_size` bytes, at borders of record batches.

    Args:
        pack_tokens: int64[p].
        token_bytes: of a token id.
        fingerprint: the set's.
    """
    num_pieces = np.diff(plan.packs.offsets)
    num_bytes = pack_tokens * token_bytes + num_pieces * _BYTES_PER_PIECE + _BYTES_PER_PACK
    if plan.pieces.of_items:
        num_bytes += plan.pieces.num_samples(plan.packs) * _BYTES_PER_BRANCH
    tasks = []
    for g, group in enumerate(plan.groups):
        first, stop = np.searchsorted(plan.packs.group, [g, g + 1]).tolist()
        for number, (begin, end) in enumerate(_cuts(num_bytes[first:stop], shard_size)):
            path = shard_path(group.name(g), number)
            tasks.append(ShardTask(path, g, first + begin, end - begin, fingerprint))
    return tasks


def _cuts(num_bytes: Int64Array, shard_size: int) -> list[tuple[int, int]]:
    """Cut packs into ranges: as many even shards as the size asks for, so that none is a small remainder."""
    if not len(num_bytes):
        return []
    num_shards = max(1, round(int(num_bytes.sum()) / shard_size))
    cumulated = np.cumsum(num_bytes)
    targets = cumulated[-1] * np.arange(1, num_shards) // num_shards
    places = np.searchsorted(cumulated, targets)
    places = -(-places // PACKS_PER_BATCH) * PACKS_PER_BATCH
    borders = [0, *sorted({place for place in places.tolist() if 0 < place < len(num_bytes)}), len(num_bytes)]
    return list(itertools.pairwise(borders))


@dataclass(frozen=True, kw_only=True)
class PlannedPacks:
    """The packs of a plan, with all that their columns are made of."""

    plan: Plan
    piece_loss: PieceLoss
    cost: Cost
    store: TokenStore | None
    """The token store; None leaves out its contents: tokens, sources, trees, and with them the checksums of rows."""

    def columns(self, first: int, stop: int) -> Columns:
        """Make the columns of the packs first .. stop-1, as shards have them."""
        plan, store = self.plan, self.store
        members = plan.packs.pieces[plan.packs.offsets[first] : plan.packs.offsets[stop]]
        offsets = plan.packs.offsets[first : stop + 1] - plan.packs.offsets[first]
        length = plan.pieces.length[members]
        tokens, group = segment_sums(length, offsets), plan.packs.group[first:stop]
        columns: Columns = {"pack_id": np.arange(first, stop)}
        columns |= self._piece_columns(plan.pieces.take(members), offsets)
        if plan.pieces.work is not None:
            work = segment_sums(plan.pieces.work[members], offsets)
        else:
            is_causal = plan.mask == "causal"
            work = tokens * tokens if is_causal else segment_sums(np.square(length, dtype=np.int64), offsets)
        columns |= {
            "group": group,
            "sp_size": np.array([g.sp_size for g in plan.groups], dtype=np.int16)[group],
            "checkpoint_layers": np.array([g.checkpoint_layers for g in plan.groups], dtype=np.int16)[group],
            "num_tokens": tokens.astype(np.int32),
            "num_loss_tokens": segment_sums(self.piece_loss.tokens[members], offsets).astype(np.int32),
            "attention_work": work,
            "cost": self.cost.quadratic * work + self.cost.linear * tokens,
            "cp_sharding": plan.packs.cp_sharding[first:stop],
        }
        if store is not None:
            schema = store.index.columns.shard(store.index.token_type)
            others = schema.remove(schema.get_field_index(CHECKSUM))
            batch = _batch(columns, 0, stop - first, others)
            columns[CHECKSUM] = row_checksums(columns_of(batch))
        return columns

    def _piece_columns(self, pieces: Pieces, offsets: Int64Array) -> Columns:
        """Make the columns of packs that follow from their pieces: samples, tokens, loss and trees.

        A sample of a set of items is a branch, numbered over the branches of the whole store.

        Args:
            offsets: int64[p+1]: pack k has the pieces `offsets[k]` to `offsets[k + 1] - 1`.
        """
        sample, num_branches = pieces.sample, pieces.num_branches
        branches = offsets_of(num_branches)[offsets]
        columns: Columns = {"sample_starts": Lists(branches, np.repeat(pieces.start, num_branches))}
        if pieces.path_tokens is not None:
            columns["item_ids"] = Lists(branches, np.repeat(sample, num_branches))
            columns["item_branches"] = Lists(offsets, num_branches)
            columns["num_path_tokens"] = segment_sums(pieces.path_tokens, offsets)
        else:
            columns["sample_ids"] = Lists(offsets, sample)
            columns["cu_seqlens"] = borders_of(offsets, pieces.length)
        if self.store is not None:
            columns |= self.store.gather(pieces, offsets)
            columns["source_ids"] = Lists(branches, np.repeat(self.store.sources_of(sample), num_branches))
        return columns


class ShardWriter:
    """Gathers the packs of shards from the token store and writes them: the function of the write stage's tasks.

    Pickled, it is the names of its plan and store, which a worker process opens once. Checking them is left to the
    process that made it.
    """

    def __init__(
        self,
        folder: Path,
        header: PlanHeader,
        planned: tuple[Plan, PieceLoss],
        store: TokenStore,
        *,
        index_only: bool = False,
        tasks: Sequence[ShardTask] | None = None,
    ) -> None:
        """Open nothing.

        Args:
            folder: of the set.
            header: the plan's.
            planned: what `read_plan` gave.
            index_only: leave the tokens in the store. Checksums cover them all the same.
            tasks: all that will be written, which decide what is fetched of a remote store; None: any may be.
        """
        import pyarrow.compute  # noqa: F401  (else a cast does, on a thread, where no descriptor may be free)

        self._names = folder, header.fingerprint, index_only
        self._folder = folder
        self._plan, piece_loss = planned
        self._packs = PlannedPacks(plan=self._plan, piece_loss=piece_loss, cost=header.cost, store=store)
        self._store = store
        self._tasks = tasks
        self._lock = Lock()
        self._has_fetched = False
        token = store.index.token_type
        self._schema = index_schema(token) if index_only else store.index.columns.shard(token)
        # Where blocks begin decides bytes: Arrow pads the columns of a batch cut from one with what follows.
        largest = PACKS_PER_BATCH * max(group.capacity for group in self._plan.groups)
        self._packs_per_block = PACKS_PER_BATCH * max(1, _TOKENS_PER_GATHER // largest)

    def __call__(self, task: ShardTask) -> FinishedPart:
        """Write a shard."""
        return write_part(self.write, task, self._folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_writer, self._names

    def write(self, task: ShardTask, sink: Sink) -> dict[str, int]:
        """Write a shard.

        Price: reading and writing its bytes once; packs are gathered while those before them are written. Memory:
        three times `_TOKENS_PER_GATHER`, or 16 packs if those are more.
        """
        with self._lock:
            if not self._has_fetched:
                self._fetch()
                self._has_fetched = True
        schema = identify(self._schema, task.fingerprint, task.name)
        with sink.file(task.name) as file, arrow_file(file, schema) as writer:
            for blocks in one_ahead(self._blocks(task, schema)):
                for block in blocks:
                    for row in range(0, len(block), PACKS_PER_BATCH):
                        writer.write_batch(block.slice(row, PACKS_PER_BATCH))
        return {}

    def _fetch(self) -> None:
        """Fetch the parts of a remote store of which much is needed; ranges of the others are read as they are."""
        needs = np.zeros(len(self._store.index.parts))
        offsets, pieces = self._plan.packs.offsets, self._plan.pieces
        for shard in self._tasks or ():
            members = self._plan.packs.pieces[offsets[shard.first_pack] : offsets[shard.first_pack + shard.num_packs]]
            needs += self._store.needs(pieces.sample[members], pieces.length[members])
        self._store.fetch_parts(None if self._tasks is None else needs)

    def _blocks(self, shard: ShardTask, schema: pa.Schema) -> Iterator[list[pa.RecordBatch]]:
        """Yield the blocks of a shard, about a million tokens at a time."""
        stop = shard.first_pack + shard.num_packs
        at_once = self._packs_per_block
        at_once *= max(1, _TOKENS_PER_GATHER // (at_once * self._plan.groups[shard.group].capacity))
        for first in range(shard.first_pack, stop, at_once):
            columns = self._packs.columns(first, min(first + at_once, stop))
            num_rows = len(columns["pack_id"])
            yield [
                _batch(columns, row, min(row + self._packs_per_block, num_rows), schema)
                for row in range(0, num_rows, self._packs_per_block)
            ]


@lru_cache(maxsize=1)
def _open_writer(folder: Path, plan_fingerprint: str, index_only: bool) -> ShardWriter:
    """Args: `plan_fingerprint`: keeps a process that is used again from writing an earlier plan."""
    path = folder / PLAN_NAME
    header = read_plan_header(path)
    return ShardWriter(folder, header, read_plan(path), open_own_store(folder, header), index_only=index_only)


def _batch(columns: Columns, begin: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
    """Take the rows begin .. end-1 of the columns."""
    rows: Columns = {}
    for name in schema.names:
        column = columns[name]
        if isinstance(column, Lists):
            offsets = column.offsets[begin : end + 1]
            rows[name] = Lists(offsets - offsets[0], column.values[offsets[0] : offsets[-1]])
        else:
            rows[name] = column[begin:end]
    return to_batch(rows, schema)


Item = TypeVar("Item")
_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; each is computed while the caller works on the one before. Errors are raised in order."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, _END)
        while (item := waiting.result()) is not _END:
            waiting = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]
