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

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import TreeFigures
from packer_cli.format.ragged import expand, offsets_of, owners
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.item_kernels import ItemPieces, Store, find_ends, measure
from packer_cli.plan.core.types import WHOLE, Int64Array, Pieces, PieceTrees, read_only


def whole_items(trees: ItemTrees) -> Pieces:
    """A piece for each item of a store, all of it, in the order of its rows. O(segments)."""
    num = len(trees.kinds)
    pieces = empty_pieces(num)
    pieces.item[:] = np.arange(num)
    pieces.stop_branch[:] = np.diff(trees.branch_offsets)
    pieces.length[:] = trees.segment_lengths[trees.segment_offsets[:-1]]
    return replace(measured(trees, pieces), samples=None)


def measure_pieces(trees: ItemTrees, pieces: Pieces) -> Pieces:
    """The pieces with their numbers counted anew, from their branches and depths. O(segments of their items)."""
    assert pieces.trees is not None
    columns: Iterable[NDArray[Any]] = (pieces.sample, pieces.start, pieces.length, *pieces.trees)
    return measured(trees, ItemPieces._make(values.copy() for values in columns))


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
    return PieceBranches(piece, branch, for_kernels(trees).ends[segment])


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


def empty_pieces(num: int) -> ItemPieces:
    """Pieces to be written to, none of which is cut."""
    narrow, wide = np.zeros((7, num), dtype=np.int32), np.zeros((2, num), dtype=np.int64)
    pieces = ItemPieces(*narrow, *wide)
    pieces.depth[:] = WHOLE
    return pieces


def for_kernels(trees: ItemTrees) -> Store:
    """The items of a store as kernels take them. O(segments)."""
    trees = ItemTrees._make(read_only(np.ascontiguousarray(values)) for values in trees)
    ends = np.empty(len(trees.segment_lengths), dtype=np.int64)
    find_ends(trees, ends)
    return Store(trees, read_only(ends), np.empty(int(np.diff(trees.segment_offsets).max(initial=0)), dtype=np.bool_))


def measured(trees: ItemTrees, pieces: ItemPieces) -> Pieces:
    """The pieces, with what they take, which is written to them. O(segments of their items)."""
    measure(for_kernels(trees), pieces)
    return Pieces(samples=pieces.item, start=pieces.start, length=pieces.length, trees=PieceTrees(*pieces[3:]))


def tree_figures(trees: ItemTrees, pieces: Pieces) -> TreeFigures:
    """Count the savings of shared prefixes in these pieces. O(segments + branches)."""
    given = pieces.trees
    assert given is not None
    of, num = piece_branches(trees, pieces), given.stop_branch - given.first_branch
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    lengths = np.minimum(of.ends, np.where(is_flat, pieces.length, given.depth)[of.piece])
    longest = np.maximum.reduceat(lengths, offsets_of(num)[:-1]) if len(num) else num
    return TreeFigures(
        tokens_padded=int((longest * num).sum()),
        tokens_flat=int(lengths.sum()),
        tokens_unique=int(pieces.length.sum(dtype=np.int64)),
        attention_flat=int(np.square(lengths).sum()),
        attention_tree=int(given.work.sum()),
        path_tokens=int(given.path_tokens.sum()),
    )
