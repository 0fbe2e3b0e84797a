"""Packs of items as trees, in plain Python: where each branch's tokens are, and what sees what."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import Pack
from packer_cli.format.trees import GROUP, PAIR, SAMPLE
from tests.trees import grow


class Branch(NamedTuple):
    """A sample: its tokens, and the weight of each one's loss (0: none; never at the first)."""

    tokens: list[int]
    weights: list[float]


class Row(NamedTuple):
    """A row as lists, with the places in it of each branch's tokens."""

    input_ids: list[int]
    segment_starts: list[int]
    segment_parents: list[int]
    branch_segments: list[int]
    places: list[list[int]]


def plant(items: list[list[Branch]]) -> Row:
    """The row of some items; branches without a common prefix are trees of their own."""
    row = Row([], [0], [], [], [])
    for branches in items:
        tokens, starts, parents, ends = grow([branch.tokens for branch in branches])
        first, begin = len(row.segment_parents), len(row.input_ids)
        for end in ends:
            path = [end]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            row.places.append([begin + t for segment in path for t in range(starts[segment], starts[segment + 1])])
        row.input_ids.extend(tokens)
        row.segment_starts.extend(begin + start for start in starts[1:])
        row.segment_parents.extend(parent if parent < 0 else first + parent for parent in parents)
        row.branch_segments.extend(first + end for end in ends)
    return row


def pack_of(items: list[list[Branch]], *, is_weighted: bool = False, pack_id: int = 0, **values: Any) -> Pack:
    """The pack of these items; sample and item ids count up. An item of two branches is a pair."""
    row = plant(items)
    branches = [branch for item in items for branch in item]
    starts, stops, weights, counts = [], [], [], []
    for branch in branches:
        before = len(starts)
        at = 1
        while at < len(branch.tokens):
            end = at + 1
            while end < len(branch.tokens) and branch.weights[end] == branch.weights[at]:
                end += 1
            if branch.weights[at]:
                starts.append(at)
                stops.append(end)
                weights.append(branch.weights[at])
            at = end
        counts.append(len(starts) - before)
    borders = [start for start, parent in zip(row.segment_starts, row.segment_parents, strict=False) if parent < 0]
    integers = {"loss_starts": starts, "loss_stops": stops, "cu_seqlens": [*borders, len(row.input_ids)],
                "segment_starts": row.segment_starts, "segment_parents": row.segment_parents,
                "branch_segments": row.branch_segments, "branch_loss_spans": counts}  # fmt: skip
    return Pack(
        pack_id=pack_id,
        num_loss_tokens=sum(stops) - sum(starts),
        input_ids=np.array(row.input_ids, dtype=np.int32),
        **{name: np.array(value, dtype=np.int32) for name, value in integers.items()},
        sample_ids=np.arange(len(branches)),
        cp_sharding=0,
        loss_weights=np.array(weights, dtype=np.float32) if is_weighted else None,
        branch_roles=np.array([role for item in items for role in range(len(item))], dtype=np.int16),
        item_ids=np.array([i for i, item in enumerate(items) for _ in item], dtype=np.int64),
        **{name: np.full(len(items), np.nan, dtype=np.float32) for name in ITEM_VALUES} | values,
        rewards=np.full(len(branches), np.nan, dtype=np.float32),
        item_branches=np.array([*map(len, items)], dtype=np.int32),
        item_kinds=np.array([{1: SAMPLE, 2: PAIR}.get(len(item), GROUP) for item in items], dtype=np.int8),
    )


def sees(row: Row) -> np.ndarray:
    """bool [N, N]: whether q sees k, from the branches alone: k comes before q, or is q, in a branch of both."""
    found = np.zeros((len(row.input_ids), len(row.input_ids)), dtype=np.bool_)
    for places in row.places:
        for depth, q in enumerate(places):
            found[q, places[: depth + 1]] = True
    return found
