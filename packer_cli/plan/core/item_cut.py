"""The cut of the items of an epoch, of which long ones are cut, divided or left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import ItemCounts
from packer_cli.format.ragged import expand
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.check_items import check_items
from packer_cli.plan.core.item_kernels import ItemPieces, cut
from packer_cli.plan.core.items import empty_pieces, for_kernels, measured, tree_figures, whole_items
from packer_cli.plan.core.sample_cut import Cut, SizeRule
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.core.types import (
    WHOLE,
    BoolArray,
    Fates,
    Int32Array,
    Int64Array,
    Lost,
    Pieces,
    PieceTrees,
    read_only,
)


@dataclass(frozen=True, kw_only=True)
class ItemCut(Cut):
    """The items of an epoch, each whole, cut, divided, or left out by a rule."""

    trees: ItemTrees
    whole: Pieces
    """A piece for each item of the store, all of it."""
    items: Int32Array
    """int32[k], rising: the items over the capacity."""
    offsets: Int64Array
    """int64[k+1]: item j of these has the cut pieces `offsets[j]` to `offsets[j + 1] - 1`."""
    cut: Pieces
    """The pieces of the items over the capacity."""
    left_out: Lost
    """The branches that no piece has."""

    @property
    def over(self) -> Int32Array:
        """The items over the capacity."""
        return self.items

    def facts_of(self, sample: int) -> tuple[int, int, tuple[int, ...]]:
        """The kind of an item, its number of branches, and its needs."""
        first, stop = self.trees.branch_offsets[sample : sample + 2].tolist()
        return int(self.trees.kinds[sample]), stop - first, tuple(int(need[sample]) for need in self.whole.needs)

    def lost(self) -> Lost:
        """The branches that are left out or cut off."""
        given, capacity = _of_trees(self.cut), self.rule.capacity
        kept = np.where(given.depth < WHOLE, given.depth, capacity).astype(np.int32)
        cut, is_cut_off = (self.cut.sample, given.first_branch, given.stop_branch, kept), self._are_cut_off()
        both = Lost._make(np.append(one[is_cut_off], other) for one, other in zip(cut, self.left_out, strict=True))
        order = np.argsort(both.sample, kind="stable")
        return Lost._make(values[order] for values in both)

    def _are_cut_off(self) -> BoolArray:
        """Which of the cut pieces (bool[m]) have lost tokens."""
        is_flat: BoolArray = self.trees.kinds[self.cut.sample] == SAMPLE
        return (_of_trees(self.cut).depth < WHOLE) | (is_flat & (not self.rule.of_items.divides))

    def fates(self, pieces: Pieces) -> Fates:
        """Count what became of the items. O(segments + pieces)."""
        kinds, num_branches = self.trees.kinds, np.diff(self.trees.branch_offsets)
        number, cut_off, given = np.diff(self.offsets), self._are_cut_off(), _of_trees(self.cut)
        lost, divided, shortened = (
            self.items[number == 0], self.items[number > 1], np.unique(self.cut.sample[cut_off])
        )  # fmt: skip
        packed = np.unique(pieces.sample)
        planned = np.union1d(packed, lost)
        lost_turns = (self.left_out.stop_branch - self.left_out.first_branch)[kinds[self.left_out.sample] == TURNS]
        turns_cut = (given.stop_branch - given.first_branch)[cut_off & (kinds[self.cut.sample] == TURNS)]

        def number_of(items: Int32Array, kind: int) -> int:
            return int((kinds[items] == kind).sum())

        counts = ItemCounts(
            pairs=number_of(packed, PAIR),
            pairs_cut=number_of(shortened, PAIR),
            pairs_left_out=number_of(lost, PAIR),
            groups=number_of(packed, GROUP),
            groups_cut=number_of(shortened, GROUP),
            groups_left_out=number_of(lost, GROUP),
            conversations=number_of(packed, TURNS),
            conversations_divided=number_of(divided, TURNS),
            turns=int(num_branches[planned[kinds[planned] == TURNS]].sum() - lost_turns.sum()),
            turns_cut=int(turns_cut.sum()),
            turns_left_out=int(lost_turns.sum()),
            samples_cut=number_of(shortened, SAMPLE),
            samples_left_out=number_of(lost, SAMPLE),
            over_path_limit=int((self.whole.sizes(self.rule.limits[:1])[self.items] <= self.rule.capacity).sum()),
        )
        return Fates(len(divided), len(shortened), len(lost), counts, tree_figures(self.trees, pieces))

    def check(self, pieces: Pieces) -> None:
        """Prove that the pieces have each branch as often as asked for, cut by the rule alone.

        Raises:
            PlanError: they do not.
        """
        check_items(pieces, self.trees, self.chosen, self.rule, self.left_out)


def cut_items(samples: Samples, trees: ItemTrees, rule: SizeRule, chosen: Int32Array | None) -> ItemCut:
    """Cut the items of an epoch, repeated by weight. O(segments + pieces).

    A pair or a group is cut at the greatest depth at which it fits, turns are divided into as few runs of branches as
    fit one after another, and of these a branch that is too long alone is cut at a depth. Where no depth leaves each
    branch a loss token, the item or the branch is left out.
    """
    whole = whole_items(trees)
    is_long = whole.sizes(rule.limits) > rule.capacity
    given = np.arange(len(whole), dtype=np.int32) if chosen is None else chosen
    items = np.unique(given[is_long[given]])
    offsets, cut_pieces, left_out = _cut(trees, items, rule)
    pieces = whole
    if len(items):
        number, begin = np.ones(len(whole), dtype=np.int64), np.arange(len(whole))
        number[items], begin[items] = np.diff(offsets), len(whole) + offsets[:-1]
        pieces = _joined(whole, cut_pieces).take(expand(begin[given], number[given]))
    elif len(given) < len(whole) or not (np.diff(given) > 0).all():
        pieces = whole.take(given)
    return ItemCut(
        samples=samples, rule=rule, chosen=chosen, pieces=pieces, trees=trees, whole=whole, items=items,
        offsets=offsets, cut=cut_pieces, left_out=left_out,
    )  # fmt: skip


def _cut(trees: ItemTrees, items: Int32Array, rule: SizeRule) -> tuple[Int64Array, Pieces, Lost]:
    """Cut items (int32[k], rising) over the capacity: `offsets`, `cut` and `left_out` of `ItemCut`."""
    kinds, num_branches = trees.kinds[items], np.diff(trees.branch_offsets)[items]
    tokens = trees.segment_lengths[trees.segment_offsets[items]].astype(np.int64)
    most = np.where(kinds == TURNS, num_branches, np.where(kinds == SAMPLE, -(-tokens // rule.capacity), 1))
    pieces = empty_pieces(int(most.sum()))
    left_out = Lost._make(np.zeros((4, int(num_branches.sum())), dtype=np.int32))
    offsets = np.zeros(len(items) + 1, dtype=np.int64)
    num_left = cut(for_kernels(trees), read_only(items), rule.of_items, pieces, left_out, offsets)
    found = measured(trees, ItemPieces._make(values[: offsets[-1]] for values in pieces))
    return offsets, found, Lost._make(values[:num_left] for values in left_out)


def _of_trees(pieces: Pieces) -> PieceTrees:
    assert pieces.trees is not None
    return pieces.trees


def _joined(one: Pieces, other: Pieces) -> Pieces:
    pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(_of_trees(one), _of_trees(other), strict=True)
    return Pieces(
        samples=np.append(one.sample, other.sample),
        start=np.append(one.start, other.start),
        length=np.append(one.length, other.length),
        trees=PieceTrees._make(np.append(*pair) for pair in pairs),
    )
