"""The rules for rows of items besides those of `format.trees`, and the loss of their tokens.

A row is the values of a shard's row by the names of their columns, as `ShardFile.columns` gives it; all items of a
part of the token store are one such row, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row
from packer_cli.format.ragged import expand, offsets_of
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import Row
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED, SAMPLE, TURNS, Trees, find_wrong_tree

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
