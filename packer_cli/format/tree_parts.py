"""The items of a part of the token store: the columns that its rows have besides those of samples, and their rules.

Price: a few numpy passes over segments, branches and loss spans, times the height of the trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.loss_spans import find_other_count, find_wrong_row, span_columns
from packer_cli.format.ragged import Int64Array, Lists, borders_of, offsets_of
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED, SAMPLE, TURNS, Trees, find_wrong_tree


class TreeLists(NamedTuple):
    """The trees of rows of several items: int32 lists, a list of each a row, as in `Trees`."""

    segment_starts: Lists
    segment_parents: Lists
    branch_segments: Lists


class BatchItems(NamedTuple):
    """The i items of a record batch, or i pieces of items, which have n branches and S segments."""

    kinds: NDArray[np.int8]
    """int8 [i]"""
    segment_offsets: NDArray[np.int32]
    """int32 [i+1]"""
    segment_starts: NDArray[np.int32]
    """int32 [S+i]: those of an item begin at `segment_offsets[k] + k`. As in `Trees`, like the next two."""
    segment_parents: NDArray[np.int32]
    """int32 [S]"""
    branch_offsets: NDArray[np.int32]
    """int32 [i+1]"""
    branch_segments: NDArray[np.int32]
    """int32 [n]"""
    branch_roles: NDArray[np.int16]
    """int8 [n]"""
    branch_loss_spans: NDArray[np.int32]
    """int32 [n]"""
    rewards: NDArray[np.float32]
    """float32 [n]; NaN: it has none"""
    margin: NDArray[np.float32]
    """float32 [i], as are the next; NaN: it has none"""
    ref_chosen_logps: NDArray[np.float32]
    ref_rejected_logps: NDArray[np.float32]

    @classmethod
    def of(cls, columns: Columns) -> BatchItems:
        """Those of a part with trees.

        Raises:
            ValueError: the lists of a row do not go together.
        """
        starts, parents = columns["segment_starts"], columns["segment_parents"]
        names = ("branch_segments", "branch_roles", "branch_loss_spans", "rewards")
        of_branches = [columns[name] for name in names]
        branch_offsets = of_branches[0].offsets
        if not all(np.array_equal(column.offsets, branch_offsets) for column in of_branches):
            raise ValueError("its branches have different numbers of segments, roles, loss spans and rewards")
        if not np.array_equal(starts.offsets, parents.offsets + np.arange(len(parents.offsets))):
            raise ValueError("its segments have different numbers of starts and parents")
        return cls(
            columns["item_kind"],
            parents.offsets,
            starts.values,
            parents.values,
            branch_offsets,
            *(column.values for column in of_branches),
            *(columns[name] for name in ITEM_VALUES),
        )

    @classmethod
    def of_samples(cls, token_offsets: NDArray[np.int32], span_offsets: NDArray[np.int32]) -> BatchItems:
        """Those of a part without trees: each sample is an item of one branch and one segment.

        Args:
            token_offsets, span_offsets: int32 [i+1]: where the tokens and the loss spans of each sample begin.
        """
        num = len(token_offsets) - 1
        one_each = np.arange(num + 1, dtype=np.int32)
        starts = np.zeros(2 * num, dtype=np.int32)
        starts[1::2] = np.diff(token_offsets)
        zeros, nans = np.broadcast_to(np.int8(0), num), np.broadcast_to(np.float32(np.nan), num)
        ends = np.broadcast_to(np.int32(0), num)
        parents = np.broadcast_to(np.int32(-1), num)
        counts = np.diff(span_offsets)
        return cls(
            zeros, one_each, starts, parents, one_each, ends, zeros.astype(np.int16), counts, nans, nans, nans, nans
        )

    @property
    def segment_lengths(self) -> NDArray[np.int32]:
        """int32 [S]: tokens of each segment."""
        lengths: NDArray[np.int32] = np.delete(np.diff(self.segment_starts), self.starts_offsets[1:-1] - 1)
        return lengths

    @property
    def num_tokens(self) -> NDArray[np.int32]:
        """int32 [i]: unique tokens of each item, which has a segment."""
        lengths: NDArray[np.int32] = self.segment_starts[self.starts_offsets[1:] - 1]
        return lengths

    @property
    def starts_offsets(self) -> Int64Array:
        """int64 [i+1]: where the starts of each item begin."""
        return self.segment_offsets.astype(np.int64) + np.arange(len(self.segment_offsets))

    def rows(self, offsets: Int64Array) -> TreeLists:
        """The trees of rows, of which row k has the items `offsets[k]` to `offsets[k + 1] - 1` (int64 [p+1])."""
        segments, branches = (
            of_items[offsets].astype(np.int64) for of_items in (self.segment_offsets, self.branch_offsets)
        )
        first = self.segment_offsets[:-1] - np.repeat(segments[:-1], np.diff(offsets))  # Of each item, in its row.
        parents = self.segment_parents + np.repeat(first, np.diff(self.segment_offsets))
        parents[self.segment_parents < 0] = -1
        ends = self.branch_segments + np.repeat(first, np.diff(self.branch_offsets))
        return TreeLists(
            borders_of(segments, self.segment_lengths),
            Lists(segments, parents.astype(np.int32)),
            Lists(branches, ends.astype(np.int32)),
        )

    def trees(self) -> Trees:
        """The trees of all items as those of one row."""
        return Trees(*(lists.values for lists in self.rows(np.array([0, len(self.kinds)]))))

    def tree(self, row: int) -> Trees:
        """That of one item."""
        first, stop = self.segment_offsets[row : row + 2].tolist()
        branches = self.branch_segments[self.branch_offsets[row] : self.branch_offsets[row + 1]]
        return Trees(self.segment_starts[first + row : stop + row + 1], self.segment_parents[first:stop], branches)


def find_wrong_item(columns: Columns) -> int | None:
    """The first row of a part with trees whose tree or loss spans break a rule; None where all keep them.

    Raises:
        ValueError: its lists do not go together.
    """
    items = BatchItems.of(columns)
    token_offsets = columns["input_ids"].offsets
    if not _are_trees(items, token_offsets):
        lengths = np.diff(token_offsets).tolist()
        wrong = (k for k, length in enumerate(lengths) if find_wrong_tree(items.tree(k), length) is not None)
        return next(wrong, 0)
    return _first(_wrong_kinds(items), _find_wrong_spans(columns, items))


def _first(*rows: int | None) -> int | None:
    return min((row for row in rows if row is not None), default=None)


def _are_trees(items: BatchItems, token_offsets: NDArray[np.int32]) -> bool:
    """Whether each item is a tree of its tokens; each on its own, and then all as one row."""
    num_segments, num_branches = np.diff(items.segment_offsets), np.diff(items.branch_offsets)
    if not len(num_segments):
        return True
    if num_segments.min() < 1 or num_branches.min() < 1:
        return False
    if items.segment_starts[items.starts_offsets[:-1]].any() or (items.num_tokens != np.diff(token_offsets)).any():
        return False
    number = np.arange(len(items.segment_parents)) - np.repeat(items.segment_offsets[:-1], num_segments)
    if (items.segment_parents < -1).any() or (items.segment_parents >= number).any():
        return False
    if (items.branch_segments < 0).any() or (items.branch_segments >= np.repeat(num_segments, num_branches)).any():
        return False
    return find_wrong_tree(items.trees(), int(token_offsets[-1])) is None


def _wrong_kinds(items: BatchItems) -> int | None:
    """The first item that is not of its kind."""
    num = np.diff(items.branch_offsets)
    first = items.branch_offsets[:-1]
    second = np.minimum(first + 1, len(items.branch_roles) - 1)
    is_pair = (num == 2) & (items.branch_roles[first] == CHOSEN) & (items.branch_roles[second] == REJECTED)
    wrong = (items.kinds < SAMPLE) | (items.kinds > TURNS)
    wrong |= (items.kinds == PAIR) & ~is_pair
    wrong |= (items.kinds == SAMPLE) & (num != 1)
    return int(wrong.argmax()) if wrong.any() else None


def _find_wrong_spans(columns: Columns, items: BatchItems) -> int | None:
    """As `find_wrong_spans`: spans are places in their branch."""
    offsets, starts, stops, *weights = span_columns(columns)
    of_branches = offsets_of(items.branch_loss_spans)
    if (items.branch_loss_spans < 0).any() or not np.array_equal(of_branches[items.branch_offsets], offsets):
        raise ValueError("its branches have other numbers of loss spans than its rows")
    wrong = find_wrong_row(starts, stops, of_branches, offsets_of(items.trees().branch_lengths()), None, *weights)
    if wrong is None:
        return find_other_count(columns)
    return int(np.searchsorted(items.branch_offsets, wrong, side="right")) - 1
