"""The items of a corpus, and the cut of those of an epoch, of which long ones are cut, divided or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import ItemCounts, TreeFigures
from packer_cli.format.ragged import expand
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.check_items import check_items
from packer_cli.plan.core.item_kernels import cut, measure
from packer_cli.plan.core.items import empty_pieces, for_kernels, select_items, tree_figures, whole_items
from packer_cli.plan.core.samples import Cut, Samples, SizeRule
from packer_cli.plan.core.types import (
    WHOLE,
    BoolArray,
    Fates,
    Int32Array,
    Int64Array,
    ItemPieces,
    Lost,
    Pieces,
    read_only,
)
from packer_cli.sizes import Share


@dataclass(frozen=True, kw_only=True)
class ItemSamples(Samples):
    """The facts about items that a plan needs; `lengths` are their unique tokens."""

    unit: ClassVar[str] = "item"
    trees: ItemTrees

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], weights: tuple[Share, ...] = ()) -> Self:
        """Make the items of what `columns` gave."""
        trees = ItemTrees(**{name: columns[name] for name in ItemTrees._fields})
        return cls(lengths=columns["lengths"], sources=columns.get("sources"), weights=weights, trees=trees)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that make the items, by name, without `among`."""
        return super().columns() | self.trees._asdict()

    @property
    def can_be_drawn(self) -> bool:
        """Whether a plan of some of the items says what one of all would."""
        return False

    @property
    def num_branches(self) -> Int64Array:
        """int64[n]: branches of each."""
        return np.diff(self.trees.branch_offsets)

    def select(self, samples: Int32Array) -> Self:
        """Select these items (int32[k]) alone, in this order, to plan them all."""
        return replace(super().select(samples), trees=select_items(self.trees, samples))

    def sizes(self, limits: Sequence[int] = ()) -> Int32Array:
        """Compute the tokens that each item takes of a capacity: int32[n]. O(segments)."""
        return whole_items(self.trees).sizes(limits)

    def saved(self) -> TreeFigures:
        """Count the savings of shared prefixes. O(segments)."""
        return tree_figures(self.trees, whole_items(self.trees))

    def cut(self, rule: SizeRule, seed: int) -> ItemCut:
        """Cut the items of an epoch, repeated by weight. O(segments + pieces).

        A pair or a group is cut at the greatest depth at which it fits, turns are divided into as few runs of branches
        as fit one after another, and of these a branch that is too long alone is cut at a depth. Where no depth leaves
        each branch a loss token, the item or the branch is left out.
        """
        chosen, whole = self.chosen(seed), whole_items(self.trees)
        is_long = whole.sizes(rule.limits) > rule.capacity
        given = np.arange(len(whole), dtype=np.int32) if chosen is None else chosen
        items = np.unique(given[is_long[given]])
        offsets, cut_pieces, left_out = _cut(self.trees, items, rule)
        pieces = whole
        if len(items):
            number, begin = np.ones(len(whole), dtype=np.int64), np.arange(len(whole))
            number[items], begin[items] = np.diff(offsets), len(whole) + offsets[:-1]
            pieces = _joined(whole, cut_pieces).take(expand(begin[given], number[given]))
        elif len(given) < len(whole) or not (np.diff(given) > 0).all():
            pieces = whole.take(given)
        return ItemCut(
            samples=self, rule=rule, chosen=chosen, pieces=pieces, whole=whole, items=items, offsets=offsets,
            cut=cut_pieces, left_out=left_out,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ItemCut(Cut):
    """The items of an epoch, each whole, cut, divided, or left out by a rule."""

    samples: ItemSamples
    whole: ItemPieces
    """A piece for each item of the store, all of it."""
    items: Int32Array
    """int32[k], rising: the items over the capacity."""
    offsets: Int64Array
    """int64[k+1]: item j of these has the cut pieces `offsets[j]` to `offsets[j + 1] - 1`."""
    cut: ItemPieces
    """The pieces of the items over the capacity."""
    left_out: Lost
    """The branches that no piece has."""

    @property
    def _trees(self) -> ItemTrees:
        return self.samples.trees

    @property
    def over(self) -> Int32Array:
        """The items over the capacity."""
        return self.items

    def facts_of(self, sample: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the kind of an item, its number of branches, and its needs."""
        first, stop = self._trees.branch_offsets[sample : sample + 2].tolist()
        return int(self._trees.kinds[sample]), stop - first, tuple(int(need[sample]) for need in self.whole.needs)

    def lost(self) -> Lost:
        """List the branches that are left out or cut off."""
        given, capacity = self.cut.trees, self.rule.capacity
        kept = np.where(given.depth < WHOLE, given.depth, capacity).astype(np.int32)
        cut, is_cut_off = (self.cut.sample, given.first_branch, given.stop_branch, kept), self._are_cut_off()
        both = Lost._make(np.append(one[is_cut_off], other) for one, other in zip(cut, self.left_out, strict=True))
        order = np.argsort(both.sample, kind="stable")
        return Lost._make(values[order] for values in both)

    def _are_cut_off(self) -> BoolArray:
        """Find the cut pieces (bool[m]) that have lost tokens."""
        is_flat: BoolArray = self._trees.kinds[self.cut.sample] == SAMPLE
        return (self.cut.trees.depth < WHOLE) | (is_flat & (not self.rule.divides))

    def fates(self, pieces: Pieces) -> Fates:
        """Count what became of the items. O(segments + pieces)."""
        assert isinstance(pieces, ItemPieces)
        kinds, num_branches = self._trees.kinds, self.samples.num_branches
        number, cut_off = np.diff(self.offsets), self._are_cut_off()
        lost, divided, shortened = (
            self.items[number == 0], self.items[number > 1], np.unique(self.cut.sample[cut_off])
        )  # fmt: skip
        packed = np.unique(pieces.sample)
        planned = np.union1d(packed, lost)
        lost_turns = (self.left_out.stop_branch - self.left_out.first_branch)[kinds[self.left_out.sample] == TURNS]
        turns_cut = self.cut.num_branches[cut_off & (kinds[self.cut.sample] == TURNS)]

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
        return Fates(len(divided), len(shortened), len(lost), counts, tree_figures(self._trees, pieces))

    def check(self, pieces: Pieces) -> None:
        """Prove that the pieces have each branch as often as asked for, cut by the rule alone.

        Raises:
            PlanError: they do not.
        """
        assert isinstance(pieces, ItemPieces)
        check_items(pieces, self._trees, self.chosen, self.rule, self.left_out)


def _cut(trees: ItemTrees, items: Int32Array, rule: SizeRule) -> tuple[Int64Array, ItemPieces, Lost]:
    """Cut items (int32[k], rising) over the capacity: `offsets`, `cut` and `left_out` of `ItemCut`."""
    kinds, num_branches = trees.kinds[items], np.diff(trees.branch_offsets)[items].astype(np.int32)
    offsets = np.zeros(len(items) + 1, dtype=np.int64)
    if rule.overflow in ("drop", "error"):
        return offsets, empty_pieces(0), Lost(items, np.zeros_like(items), num_branches, np.zeros_like(items))
    tokens = trees.segment_ends[trees.segment_offsets[items]].astype(np.int64)
    most = np.where(kinds == TURNS, num_branches, np.where(kinds == SAMPLE, -(-tokens // rule.capacity), 1))
    pieces = empty_pieces(int(most.sum()))
    left_out = Lost._make(np.zeros((4, int(num_branches.sum())), dtype=np.int32))
    own, to_write = for_kernels(trees), (pieces.sample, pieces.start, pieces.length, pieces.trees, left_out, offsets)
    num_left = cut(own, read_only(items), rule.most, rule.divides, *to_write)
    found = ItemPieces.of({name: values[: offsets[-1]] for name, values in pieces.columns().items()})
    measure(own, found.sample, found.length, found.trees)
    return offsets, found, Lost._make(values[:num_left] for values in left_out)


def _joined(one: ItemPieces, other: ItemPieces) -> ItemPieces:
    others = other.columns()
    return ItemPieces.of({name: np.append(values, others[name]) for name, values in one.columns().items()})
