"""The columns of items, a row an item: of a part of the token store, or of pieces of items.

They are those of `schema.RowColumns.part` that only items have, and their loss spans. Price: a few numpy passes over
segments, branches and loss spans, times the height of the trees.

And the rules for rows of items besides those of `format.trees`, and the loss of their tokens. A row is the values of a
shard's row by the names of their columns, as `ShardFile.columns` gives it; all items of a part of the token store are
one such row, too.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns, Row
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_other_count, find_wrong_row, span_columns
from packer_cli.format.ragged import Int64Array, Lists, borders_of, expand, offsets_of
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED, SAMPLE, TURNS, Trees, find_wrong_tree

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
    # The first number of rows that are not all right, less one.
    stops = range(1, len(columns["item_kind"]))
    return bisect_left(stops, True, key=lambda stop: not _are_right(_take(columns, stop)))


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


def _take(columns: Columns, num: int) -> Columns:
    """Take the first rows."""
    rows = np.arange(num)
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


_OF_BRANCHES = (
    "branch_roles", "branch_loss_spans", "rewards", "item_ids", "sample_ids", "sample_starts", "source_ids"
)  # fmt: skip


def trees_of(row: Row) -> Trees:
    """Return the trees of a row."""
    return Trees(row["segment_starts"], row["segment_parents"], row["branch_segments"])


def find_wrong_items(row: Row) -> str | None:
    """Say in a few words what is wrong with the trees, items and loss spans of a row; None if they keep every rule.

    O(segments * height + spans) numpy passes.
    """
    return _find_wrong_lists(row) or find_wrong_branches(row) or _find_wrong_counts(row)


def _find_wrong_lists(row: Row) -> str | None:
    num_branches, sizes = len(row["branch_segments"]), row["item_branches"]
    for name in _OF_BRANCHES:
        if len(row[name]) != num_branches:
            return f"it has {len(row[name])} {name} for {num_branches} branches"
    if (sizes < 1).any() or sizes.sum(dtype=np.int64) != num_branches:
        return "its items have other numbers of branches than it has"
    for name in ("item_kinds", *ITEM_VALUES):
        if len(row[name]) != len(sizes):
            return f"it has {len(row[name])} {name} for {len(sizes)} items"
    if (row["item_ids"] != np.repeat(row["item_ids"][np.cumsum(sizes) - sizes], sizes)).any():
        return "branches of an item have other item ids"
    return None


def find_wrong_branches(row: Row) -> str | None:
    """Say what is wrong with the trees, kinds and loss spans of a row with lists of the right lengths, or None.

    Args:
        row: its trees, loss spans and tokens; `item_branches` and `item_kinds`; and the roles of branches.
    """
    trees, sizes, kinds, roles = trees_of(row), row["item_branches"], row["item_kinds"], row["branch_roles"]
    why = find_wrong_tree(trees, len(row["input_ids"]))
    if why is not None:
        return why
    first = np.cumsum(sizes) - sizes
    # Items follow one another, so no tree and no gap is between the branches of one.
    borders = trees.root_borders()
    roots = np.searchsorted(borders, trees.segment_starts[trees.branch_segments], side="right") - 1
    begins, ends = np.minimum.reduceat(roots, first), np.maximum.reduceat(roots, first)
    if begins[0] != 0 or (begins[1:] != ends[:-1] + 1).any():
        return "its items do not follow one another"
    if (kinds < SAMPLE).any() or (kinds > TURNS).any() or (roles < 0).any():
        return "it has unknown kinds of items, or roles"
    pairs = first[kinds == PAIR]
    if (sizes[kinds == PAIR] != 2).any() or (roles[pairs] != CHOSEN).any() or (roles[pairs + 1] != REJECTED).any():
        return "a pair is not one chosen and one rejected branch"
    if (sizes[kinds == SAMPLE] != 1).any():
        return "a sample has several branches"
    return _find_wrong_loss(row, trees)


def _find_wrong_loss(row: Row, trees: Trees) -> str | None:
    starts, stops, weights, counts = row[STARTS], row[STOPS], row.get(WEIGHTS), row["branch_loss_spans"]
    if not (counts >= 0).all() or not len(starts) == len(stops) == counts.sum(dtype=np.int64):
        return "it has other numbers of loss spans than its branches"
    offsets, tokens = offsets_of(counts), offsets_of(trees.branch_lengths())
    is_even = weights is None or len(weights) == len(starts)
    wrong = find_wrong_row(starts, stops, offsets, tokens, None, weights) if is_even else 0
    return None if wrong is None else f"the loss spans of its branch {wrong} are wrong"


def _find_wrong_counts(row: Row) -> str | None:
    if (row[STOPS].astype(np.int64) - row[STARTS]).sum() != row["num_loss_tokens"]:
        return "its loss spans are not as many tokens as it counts"
    trees = trees_of(row)
    if not np.array_equal(row["cu_seqlens"], trees.root_borders()):
        return "its borders are not those of its trees"
    for name, found in (("num_path_tokens", trees.num_path_tokens()), ("attention_work", trees.attention_work())):
        if row[name] != found:
            return f"its {name} is {row[name]}, and its trees have {found}"
    return None


def loss_by_token(row: Row) -> NDArray[np.float32]:
    """Sum up the weights of each token's loss over the branches that train it: float32 [t]. O(tokens of branches)."""
    trees, starts, stops = trees_of(row), row[STARTS].astype(np.int64), row[STOPS]
    weights = row.get(WEIGHTS, np.ones(len(starts), dtype=np.float32))
    paths = trees.paths(trees.branch_segments)
    num = stops - starts
    tokens = paths.values[expand(np.repeat(paths.offsets[:-1], row["branch_loss_spans"]) + starts, num)]
    return np.bincount(tokens, np.repeat(weights, num), minlength=len(row["input_ids"])).astype(np.float32)
