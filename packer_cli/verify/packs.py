"""Whether the packs in a shard are the plan's, and their tokens the token store's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import to_numpy
from packer_cli.format.checksums import require_damage
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, count_by_row, find_wrong_row
from packer_cli.format.marks import CHECKSUM, row_checksums
from packer_cli.format.token_parts import PieceTokens, with_tokens
from packer_cli.plan.core.cost import Cost
from packer_cli.plan.core.types import PieceLoss, Plan
from packer_cli.remote.local import open_source
from packer_cli.shards.layout import ShardRange
from packer_cli.tokens.store import TokenStore

_OF_THE_STORE = ("source_ids", "input_ids", STARTS, STOPS, WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the packs are compared with."""

    plan: Plan
    piece_loss: PieceLoss
    cost: Cost
    schema: pa.Schema
    """The columns of shards."""
    store: TokenStore | None
    """None: tokens, and sources, are not compared."""

    @property
    def index_only(self) -> bool:
        """Whether shards leave the tokens in the token store."""
        return "input_ids" not in self.schema.names


def check_shard(folder: Path, shard: ShardRange, expected: Expected) -> str | None:
    """What is wrong with the contents of a shard; None where nothing is. Price: reading it once, and its tokens."""
    try:
        with open_source(folder / shard.path, goes_forward=True) as source:
            reader = pa.ipc.open_file(source)
            if not reader.schema.equals(expected.schema):
                return "it has other columns"
            for number in range(reader.num_record_batches):
                first = shard.first_pack + number * PACKS_PER_BATCH
                stop = min(first + PACKS_PER_BATCH, shard.first_pack + shard.num_packs)
                batch = reader.get_batch(number)
                why = "" if batch.num_rows == stop - first else f"its record batch {number} has {batch.num_rows} packs"
                why = why or _check_batch(batch, first, stop, shard.group, expected)
                del batch
                if why:
                    return why
            if reader.num_record_batches != -(-shard.num_packs // PACKS_PER_BATCH):
                return f"it does not hold its {shard.num_packs} packs"
    except (OSError, pa.ArrowException) as error:
        require_damage(error)
        return str(error)
    return None


def _check_batch(batch: pa.RecordBatch, first: int, stop: int, group: int, expected: Expected) -> str:
    """What is wrong with the packs first .. stop - 1; empty where nothing is."""
    batch.validate(full=True)
    plan = expected.plan
    of_group = plan.groups[group]
    offsets = plan.packs.offsets[first : stop + 1]
    members = plan.packs.pieces[offsets[0] : offsets[-1]]
    borders = offsets - offsets[0]
    sample, start = plan.pieces.sample[members], plan.pieces.start[members]
    length = plan.pieces.length[members].astype(np.int64)
    tokens = np.add.reduceat(length, borders[:-1])
    work = np.add.reduceat(length * length, borders[:-1]) if plan.mask == "document" else tokens**2
    loss_tokens = expected.piece_loss.tokens[members].astype(np.int64)
    rows = np.repeat(np.arange(stop - first), np.diff(borders))
    ends = np.cumsum(length) - np.repeat(np.cumsum(tokens) - tokens, np.diff(borders))
    cu_seqlens = [np.concatenate([[0], ends[rows == row]]) for row in range(stop - first)]
    numbers: dict[str, Any] = {
        "pack_id": np.arange(first, stop),
        "group": group,
        "sp_size": of_group.sp_size,
        "checkpoint_layers": of_group.checkpoint_layers,
        "num_tokens": tokens,
        "num_loss_tokens": np.add.reduceat(loss_tokens, borders[:-1]),
        "attention_work": work,
        "cost": expected.cost.quadratic * work + expected.cost.linear * tokens,
        "cp_sharding": plan.packs.cp_sharding[first:stop],
    }
    lists: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "cu_seqlens": (np.concatenate(cu_seqlens), borders + np.arange(len(borders))),
        "sample_ids": (sample, borders),
        "sample_starts": (start, borders),
    }
    token_borders = np.concatenate([[0], np.cumsum(tokens)])
    if expected.store is not None:
        gathered = expected.store.gather(sample, start, plan.pieces.length[members])
        span_borders, loss_starts, loss_stops = gathered.spans_by_row(token_borders)
        lists |= {
            "source_ids": (expected.store.sources_of(sample), borders),
            "input_ids": (gathered.input_ids, token_borders),
            STARTS: (loss_starts, span_borders),
            STOPS: (loss_stops, span_borders),
        }
        if gathered.loss_weights is not None:
            lists[WEIGHTS] = (gathered.loss_weights, span_borders)
        if expected.index_only:
            tokens_of = PieceTokens(gathered.input_ids, loss_starts, loss_stops, gathered.loss_weights)
            batch = with_tokens(batch, token_borders, span_borders, tokens_of)
    elif not expected.index_only:
        lists["input_ids"] = (to_numpy(batch.column("input_ids").values), token_borders)
    has_tokens = "input_ids" in batch.schema.names
    if has_tokens:
        numbers[CHECKSUM] = row_checksums(batch)
    for name, values in numbers.items():
        wrong = np.flatnonzero(to_numpy(batch.column(name)) != values)
        if len(wrong):
            return f"pack {first + wrong[0]} has another {name} than the plan"
    for name, (items, ends_of_rows) in lists.items():
        column = batch.column(name)
        found, found_ends = to_numpy(column.values), to_numpy(column.offsets)
        source = "token store" if name in _OF_THE_STORE else "plan"
        if not np.array_equal(found_ends, ends_of_rows):
            return f"the lengths of {name} in packs {first} to {stop - 1} are not the {source}'s"
        wrong = np.flatnonzero(found != items)
        if len(wrong):
            pack = first + int(np.searchsorted(ends_of_rows, wrong[0], side="right")) - 1
            return f"pack {pack} has other {name} than the {source}"
    return _check_spans(batch, first, token_borders, np.concatenate([[0], np.cumsum(length)])) if has_tokens else ""


def _check_spans(
    batch: pa.RecordBatch, first: int, token_borders: NDArray[np.int64], borders: NDArray[np.int64]
) -> str:
    """Whether loss spans keep their rules and give the numbers of loss tokens; `borders` are those of the samples."""
    starts, stops = batch.column(STARTS), batch.column(STOPS)
    offsets = to_numpy(starts.offsets)
    if not np.array_equal(offsets, to_numpy(stops.offsets)):
        return f"packs from {first} on have other numbers of {STARTS} than of {STOPS}"
    spans = to_numpy(starts.values), to_numpy(stops.values), offsets
    weights = None
    if WEIGHTS in batch.schema.names:
        column = batch.column(WEIGHTS)
        if not np.array_equal(offsets, to_numpy(column.offsets)):
            return f"packs from {first} on have other numbers of {STARTS} than of {WEIGHTS}"
        weights = to_numpy(column.values)
    wrong = find_wrong_row(*spans, token_borders, borders, weights)
    if wrong is None:
        differing = np.flatnonzero(count_by_row(*spans) != to_numpy(batch.column("num_loss_tokens")))
        wrong = int(differing[0]) if len(differing) else None
    return "" if wrong is None else f"the loss spans of pack {first + wrong} are wrong"
