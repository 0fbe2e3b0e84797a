"""The columns of items, a row an item: of a part of the token store, or of pieces of items.

They are those of `schema.RowColumns.part` that only items have, and their loss spans. Price: a few numpy passes over
segments, branches and loss spans, times the height of the trees.
"""

from __future__ import annotations

import numpy as np

from packer_cli.format.arrays import Columns
from packer_cli.format.loss_spans import STARTS, find_other_count, span_columns
from packer_cli.format.ragged import Int64Array, Lists, borders_of, offsets_of
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.tree_rows import find_wrong_branches
from packer_cli.format.trees import SAMPLE, Trees

SEGMENT_LISTS = ("segment_starts", "segment_parents")
BRANCH_LISTS = ("branch_segments", "branch_roles", "branch_loss_spans", "rewards")


def items_of_samples(columns: Columns) -> Columns:
    """Add the columns of items to those of a part of samples: each is an item of one branch and one segment."""
    tokens, spans = columns["input_ids"].offsets, columns[STARTS].offsets
    num = len(tokens) - 1
    one_each = np.arange(num + 1)
    starts = np.zeros(2 * num, dtype=np.int32)
    starts[1::2] = np.diff(tokens)
    nothing = np.broadcast_to(np.float32(np.nan), num)
    return columns | {
        "segment_starts": Lists(2 * one_each, starts),
        "segment_parents": Lists(one_each, np.broadcast_to(np.int32(-1), num)),
        "branch_segments": Lists(one_each, np.broadcast_to(np.int32(0), num)),
        "branch_roles": Lists(one_each, np.broadcast_to(np.int16(0), num)),
        "branch_loss_spans": Lists(one_each, np.diff(spans)),
        "rewards": Lists(one_each, nothing),
        "item_kind": np.broadcast_to(np.int8(SAMPLE), num),
        **dict.fromkeys(ITEM_VALUES, nothing),
    }


def unique_tokens(items: Columns) -> Int64Array:
    """Count the unique tokens (int64[i]) of each item, which has a segment."""
    starts: Lists = items["segment_starts"]
    return starts.values[starts.offsets[1:] - 1].astype(np.int64)


def all_trees(items: Columns) -> Trees:
    """Join the trees of all items as those of one row, of which borders are int64."""
    starts, parents, ends = (items[name] for name in Trees._fields)
    lengths = np.delete(np.diff(starts.values), starts.offsets[1:-1] - 1)
    of_segments, of_branches = (np.repeat(parents.offsets[:-1], np.diff(each.offsets)) for each in (parents, ends))
    above = np.where(parents.values < 0, -1, parents.values + of_segments)
    return Trees(offsets_of(lengths), above, ends.values + of_branches)


def trees_of_rows(items: Columns, offsets: Int64Array) -> Columns:
    """Make the trees and borders of rows as shards have them.

    Args:
        offsets: int64[r+1]: row k has the items `offsets[k]` to `offsets[k + 1] - 1`.
    """
    trees = all_trees(items)
    segments, branches = (items[name].offsets[offsets].astype(np.int64) for name in Trees._fields[1:])
    of_segments, of_branches = (np.repeat(segments[:-1], np.diff(each)) for each in (segments, branches))
    roots = np.flatnonzero(trees.segment_parents < 0)
    parents = np.where(trees.segment_parents < 0, -1, trees.segment_parents - of_segments)
    return {
        "segment_starts": borders_of(segments, trees.lengths),
        "segment_parents": Lists(segments, parents.astype(np.int32)),
        "branch_segments": Lists(branches, (trees.branch_segments - of_branches).astype(np.int32)),
        "cu_seqlens": borders_of(np.searchsorted(roots, segments), np.diff(trees.root_borders())),
    }


def find_wrong_item(columns: Columns) -> int | None:
    """Find the first row of a part of items whose tree or loss spans break a rule; None where all keep them.

    Raises:
        ValueError: its lists do not go together.
    """
    _require_lists(columns)
    if _are_right(columns):
        return None
    low, high = 0, len(columns["item_kind"])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _are_right(_take(columns, low, middle)) else (low, middle)
    return low


def _require_lists(columns: Columns) -> None:
    starts, parents = (columns[name] for name in SEGMENT_LISTS)
    branches = columns["branch_segments"].offsets
    if not all(np.array_equal(columns[name].offsets, branches) for name in BRANCH_LISTS):
        raise ValueError("its branches have different numbers of segments, roles, loss spans and rewards")
    if not np.array_equal(starts.offsets, parents.offsets + np.arange(len(parents.offsets))):
        raise ValueError("its segments have different numbers of starts and parents")
    counts = columns["branch_loss_spans"].values
    if (counts < 0).any() or not np.array_equal(offsets_of(counts)[branches], span_columns(columns)[0]):
        raise ValueError("its branches have other numbers of loss spans than its rows")


def _take(columns: Columns, first: int, stop: int) -> Columns:
    rows = np.arange(first, stop)
    return {name: each.take(rows) if isinstance(each, Lists) else each[rows] for name, each in columns.items()}


def _are_right(columns: Columns) -> bool:
    """Whether each item keeps the rules: first each on its own, then all as one row."""
    starts, parents, ends = (columns[name] for name in Trees._fields)
    num_segments, num_branches = np.diff(parents.offsets), np.diff(ends.offsets)
    if not len(num_segments):
        return True
    if num_segments.min() < 1 or num_branches.min() < 1 or starts.values[starts.offsets[:-1]].any():
        return False
    if (unique_tokens(columns) != np.diff(columns["input_ids"].offsets)).any():
        return False
    if (ends.values < 0).any() or (ends.values >= np.repeat(num_segments, num_branches)).any():
        return False
    number = np.arange(len(parents.values)) - np.repeat(parents.offsets[:-1], num_segments)
    if (parents.values < -1).any() or (parents.values >= number).any():
        return False
    row = {name: each.values if isinstance(each, Lists) else each for name, each in columns.items()}
    row |= {**all_trees(columns)._asdict(), "item_branches": num_branches, "item_kinds": columns["item_kind"]}
    return find_wrong_branches(row) is None and find_other_count(columns) is None
