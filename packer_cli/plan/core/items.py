"""Items: what a plan packs whole, with the tokens that their branches share counted once; and how long ones are cut.

An item (`format.trees`) takes of a capacity the greater of its unique tokens and its loss terms (M: the tokens of each
branch from its first loss token on, the most log-probabilities that a loss computes). Its path tokens (K: what a
varlen kernel gathers in every layer) have a limit in percent of the capacity.

An item over the capacity is cut at a depth that leaves every branch a loss token, or divided among pieces of
consecutive branches, which repeat their path. A piece keeps the segments that its branches pass through and that begin
above its depth.

Sources: Tree Training (arXiv 2511.00413), Preference Packing (arXiv 2602.24082). Price: O(segments) for all items; for
those that are cut, times the logarithm of their tokens or branches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import expand, offsets_of, owners
from packer_cli.format.trees import SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.item_kernels import (
    ItemPieces,
    LeftOutBranches,
    Measured,
    Store,
    cut,
    find_ends,
    measure,
)
from packer_cli.plan.core.types import WHOLE, Int32Array, Int64Array, ItemRule, Pieces, PieceTrees, read_only


class CutItems(NamedTuple):
    """k items over the capacity, and what becomes of each."""

    items: Int32Array
    """int32[k], rising."""
    offsets: Int64Array
    """int64[k+1]: item j has the pieces `offsets[j]` to `offsets[j + 1] - 1`."""
    pieces: Pieces
    left_out: LeftOutBranches


def whole_items(trees: ItemTrees) -> Pieces:
    """A piece for each item of a store, all of it, in the order of its rows. O(segments)."""
    num = len(trees.kinds)
    pieces = _empty_pieces(num)
    pieces.item[:] = np.arange(num)
    pieces.stop_branch[:] = np.diff(trees.branch_offsets)
    pieces.length[:] = trees.segment_lengths[trees.segment_offsets[:-1]]
    found = _measured(trees, pieces)
    return Pieces(samples=None, start=found.start, length=found.length, trees=found.trees)


def cut_items(trees: ItemTrees, items: Int32Array, rule: ItemRule) -> CutItems:
    """What becomes of these items (int32[k], rising), each over the capacity.

    A pair or a group is cut at the greatest depth at which it fits, turns are divided into as few runs of branches as
    fit one after another, and of these a branch that is too long alone is cut at a depth. Where no depth leaves each
    branch a loss token, the item or the branch is left out.
    """
    kinds, num_branches = trees.kinds[items], np.diff(trees.branch_offsets)[items]
    tokens = trees.segment_lengths[trees.segment_offsets[items]].astype(np.int64)
    most = np.where(kinds == TURNS, num_branches, np.where(kinds == SAMPLE, -(-tokens // rule.capacity), 1))
    pieces = _empty_pieces(int(most.sum()))
    left_out = LeftOutBranches._make(np.zeros((3, int(num_branches.sum())), dtype=np.int32))
    offsets = np.zeros(len(items) + 1, dtype=np.int64)
    num_left = cut(_for_kernels(trees), read_only(items), rule, pieces, left_out, offsets)
    pieces = ItemPieces._make(values[: offsets[-1]] for values in pieces)
    measured = _measured(trees, pieces)
    return CutItems(items, offsets, measured, LeftOutBranches._make(values[:num_left] for values in left_out))


def item_pieces(trees: ItemTrees, chosen: Int32Array | None, rule: ItemRule) -> tuple[Pieces, CutItems]:
    """The pieces of an epoch, and what became of the items over the capacity. O(segments + pieces).

    Args:
        chosen: int32[m], the items, increasing, with repetitions; None: each once.
    """
    whole = whole_items(trees)
    is_long = whole.sizes(rule.path_percent) > rule.capacity
    chosen = np.arange(len(whole), dtype=np.int32) if chosen is None else chosen
    cut = cut_items(trees, np.unique(chosen[is_long[chosen]]), rule)
    if not len(cut.items):
        return (whole if len(chosen) == len(whole) and (np.diff(chosen) > 0).all() else whole.take(chosen)), cut
    number, begin = np.ones(len(whole), dtype=np.int64), np.arange(len(whole))
    number[cut.items], begin[cut.items] = np.diff(cut.offsets), len(whole) + cut.offsets[:-1]
    return _joined(whole, cut.pieces).take(expand(begin[chosen], number[chosen])), cut


def measure_pieces(trees: ItemTrees, pieces: Pieces) -> Pieces:
    """The pieces with their numbers counted anew, from their branches and depths. O(segments of their items)."""
    assert pieces.trees is not None
    first, stop, depth = pieces.trees[:3]
    own = ItemPieces(pieces.sample, first, stop, depth, pieces.start, pieces.length)
    return _measured(trees, own)


class PieceBranches(NamedTuple):
    """The n branches of m pieces, one piece after another."""

    piece: Int64Array
    """int64[n]: of which piece each is."""
    branch: Int64Array
    """int64[n]: its number among those of the store."""
    ends: Int64Array
    """int64[n]: tokens of the branch, before it is cut."""


def piece_branches(trees: ItemTrees, pieces: Pieces) -> PieceBranches:
    """The branches of pieces. O(segments + branches)."""
    assert pieces.trees is not None
    num, sample = pieces.trees.stop_branch - pieces.trees.first_branch, pieces.sample
    piece, branch = owners(num), expand(trees.branch_offsets[sample] + pieces.trees.first_branch, num)
    segment = trees.segment_offsets[sample][piece] + trees.branch_segments[branch]
    return PieceBranches(piece, branch, _for_kernels(trees).ends[segment])


def select_items(trees: ItemTrees, items: NDArray[np.integer]) -> ItemTrees:
    """These items (int[k]) alone, in this order."""
    (segment_offsets, segments), (branch_offsets, branches) = (
        (offsets_of(sizes), expand(offsets[items], sizes))
        for offsets in (trees.segment_offsets, trees.branch_offsets)
        for sizes in (np.diff(offsets)[items],)
    )
    return ItemTrees(
        kinds=trees.kinds[items],
        segment_offsets=segment_offsets,
        segment_lengths=trees.segment_lengths[segments],
        segment_parents=trees.segment_parents[segments],
        branch_offsets=branch_offsets,
        branch_segments=trees.branch_segments[branches],
        first_loss=trees.first_loss[branches],
    )


def _empty_pieces(num: int) -> ItemPieces:
    pieces = ItemPieces._make(np.zeros((6, num), dtype=np.int32))
    pieces.depth[:] = WHOLE
    return pieces


def _joined(one: Pieces, other: Pieces) -> Pieces:
    assert one.trees is not None
    assert other.trees is not None
    pairs = {name: (values, getattr(other.trees, name)) for name, values in one.trees._asdict().items()}
    return Pieces(
        samples=np.concatenate([one.sample, other.sample]),
        start=np.concatenate([one.start, other.start]),
        length=np.concatenate([one.length, other.length]),
        trees=PieceTrees(**{name: np.concatenate(pair) for name, pair in pairs.items()}),
    )


def _for_kernels(trees: ItemTrees) -> Store:
    trees = ItemTrees._make(read_only(np.ascontiguousarray(values)) for values in trees)
    ends = np.empty(len(trees.segment_lengths), dtype=np.int64)
    find_ends(trees, ends)
    return Store(trees, read_only(ends), np.empty(int(np.diff(trees.segment_offsets).max(initial=0)), dtype=np.bool_))


def _measured(trees: ItemTrees, pieces: ItemPieces) -> Pieces:
    num = len(pieces.item)
    sums = (np.empty(num, dtype=np.int64) for _ in range(3))
    found = Measured(pieces.length.copy(), np.empty(num, dtype=np.int32), *sums)
    measure(_for_kernels(trees), ItemPieces._make(map(read_only, pieces)), found)
    of_trees = PieceTrees(pieces.first_branch, pieces.stop_branch, pieces.depth, *found[1:])
    return Pieces(samples=pieces.item, start=pieces.start, length=found.length, trees=of_trees)
