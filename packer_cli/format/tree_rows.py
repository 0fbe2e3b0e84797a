"""What a row of a set with trees must keep, besides the rules of `format.trees`, and the loss of its tokens.

A row is what `ShardFile.columns` gives: the values of a shard's row by the names of their columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, count_by_row, find_wrong_row
from packer_cli.format.ragged import expand, offsets_of
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import Row
from packer_cli.format.trees import PAIR, TURNS, Trees, find_wrong_tree

_OF_BRANCHES = (
    "branch_roles", "branch_loss_spans", "rewards", "item_ids", "sample_ids", "sample_starts", "source_ids"
)  # fmt: skip


def trees_of(row: Row) -> Trees:
    """The trees of a row."""
    return Trees(row["segment_starts"], row["segment_parents"], row["branch_segments"])


def find_wrong_items(row: Row) -> str | None:
    """What is wrong with the trees, items and loss spans of a row, in a few words; None if they keep every rule.

    O(segments * height + spans) numpy passes.
    """
    trees = trees_of(row)
    num_branches = len(trees.branch_segments)
    why = find_wrong_tree(trees, len(row["input_ids"]))
    if why is not None:
        return why
    if not np.array_equal(row["cu_seqlens"], trees.root_borders()):
        return "its borders are not those of its trees"
    for name in _OF_BRANCHES:
        if len(row[name]) != num_branches:
            return f"it has {len(row[name])} {name} for {num_branches} branches"
    return _find_wrong_items(row, trees) or _find_wrong_loss(row, trees) or _find_wrong_counts(row, trees)


def _find_wrong_items(row: Row, trees: Trees) -> str | None:
    sizes = row["item_branches"]
    if (sizes < 1).any() or sizes.sum(dtype=np.int64) != len(trees.branch_segments):
        return "its items have other numbers of branches than it has"
    for name in ("item_kinds", *ITEM_VALUES):
        if len(row[name]) != len(sizes):
            return f"it has {len(row[name])} {name} for {len(sizes)} items"
    first = np.cumsum(sizes) - sizes
    if (row["item_ids"] != np.repeat(row["item_ids"][first], sizes)).any():
        return "branches of an item have other item ids"
    # Items follow one another, so no tree and no gap is between the branches of one.
    roots = np.searchsorted(row["cu_seqlens"], trees.segment_starts[trees.branch_segments], side="right") - 1
    begins, ends = np.minimum.reduceat(roots, first), np.maximum.reduceat(roots, first)
    if begins[0] != 0 or (begins[1:] != ends[:-1] + 1).any():
        return "its items do not follow one another"
    kinds, roles = row["item_kinds"], row["branch_roles"]
    if (kinds < 0).any() or (kinds > TURNS).any() or (roles < 0).any():
        return "it has unknown kinds of items, or roles"
    pairs = first[kinds == PAIR]
    if (sizes[kinds == PAIR] != 2).any() or (roles[pairs] != 0).any() or (roles[pairs + 1] != 1).any():
        return "a pair is not one chosen and one rejected branch"
    return None


def _find_wrong_loss(row: Row, trees: Trees) -> str | None:
    starts, stops, weights, counts = row[STARTS], row[STOPS], row.get(WEIGHTS), row["branch_loss_spans"]
    if not (counts >= 0).all() or not len(starts) == len(stops) == counts.sum(dtype=np.int64):
        return "it has other numbers of loss spans than its branches"
    offsets, tokens = offsets_of(counts), offsets_of(trees.branch_lengths())
    is_even = weights is None or len(weights) == len(starts)
    wrong = find_wrong_row(starts, stops, offsets, tokens, None, weights) if is_even else 0
    if wrong is not None:
        return f"the loss spans of its branch {wrong} are wrong"
    if count_by_row(starts, stops, offsets[[0, -1]])[0] != row["num_loss_tokens"]:
        return "its loss spans are not as many tokens as it counts"
    return None


def _find_wrong_counts(row: Row, trees: Trees) -> str | None:
    for name, found in (("num_path_tokens", trees.num_path_tokens()), ("attention_work", trees.attention_work())):
        if row[name] != found:
            return f"its {name} is {row[name]}, and its trees have {found}"
    return None


def loss_by_token(row: Row) -> NDArray[np.float32]:
    """float32 [t]: the weight of each token's loss, summed over the branches that train it. O(tokens of branches)."""
    trees, starts, stops = trees_of(row), row[STARTS].astype(np.int64), row[STOPS]
    weights = row.get(WEIGHTS, np.ones(len(starts), dtype=np.float32))
    paths = trees.paths(trees.branch_segments)
    num = stops - starts
    tokens = paths.values[expand(np.repeat(paths.offsets[:-1], row["branch_loss_spans"]) + starts, num)]
    return np.bincount(tokens, np.repeat(weights, num), minlength=len(row["input_ids"])).astype(np.float32)
