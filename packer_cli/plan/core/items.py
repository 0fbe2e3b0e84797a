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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import TreeFigures
from packer_cli.format.ragged import expand, offsets_of, owners
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.item_kernels import measure
from packer_cli.plan.core.types import WHOLE, Int64Array, ItemPieces, PieceTrees, read_only


def whole_items(trees: ItemTrees) -> ItemPieces:
    """Make a piece for each item of a store, all of it, in the order of its rows. O(segments)."""
    num = len(trees.kinds)
    pieces = empty_pieces(num)
    pieces.sample[:] = np.arange(num)
    pieces.trees.stop_branch[:] = np.diff(trees.branch_offsets)
    pieces.length[:] = trees.segment_ends[trees.segment_offsets[:-1]]
    measure(for_kernels(trees), pieces.sample, pieces.length, pieces.trees)
    return replace(pieces, samples=None)


def measure_pieces(trees: ItemTrees, pieces: ItemPieces) -> ItemPieces:
    """Count the numbers of pieces anew, from their branches and depths. O(segments of their items)."""
    found = ItemPieces.of({name: values.copy() for name, values in pieces.columns().items()})
    measure(for_kernels(trees), found.sample, found.length, found.trees)
    return found


def piece_branches(trees: ItemTrees, pieces: ItemPieces) -> tuple[Int64Array, Int64Array, Int64Array]:
    """List the n branches of pieces, one piece after another: int64[n] each. O(branches).

    Returns:
        Of each branch the number of its piece; its own among those of the store; and its tokens, before it is cut.
    """
    num, sample = pieces.num_branches, pieces.sample
    piece, branch = owners(num), expand(trees.branch_offsets[sample] + pieces.trees.first_branch, num)
    segment = trees.segment_offsets[sample][piece] + trees.branch_segments[branch]
    return piece, branch, trees.segment_ends[segment].astype(np.int64)


def select_items(trees: ItemTrees, items: NDArray[np.integer]) -> ItemTrees:
    """Select these items (int[k]) alone, in this order."""
    (segment_offsets, segments), (branch_offsets, branches) = (
        (offsets_of(sizes), expand(offsets[items], sizes))
        for offsets in (trees.segment_offsets, trees.branch_offsets)
        for sizes in (np.diff(offsets)[items],)
    )
    return ItemTrees(
        kinds=trees.kinds[items],
        segment_offsets=segment_offsets,
        segment_ends=trees.segment_ends[segments],
        segment_parents=trees.segment_parents[segments],
        branch_offsets=branch_offsets,
        branch_segments=trees.branch_segments[branches],
        first_loss=trees.first_loss[branches],
    )


def empty_pieces(num: int) -> ItemPieces:
    """Make pieces to be written to, none of which is cut."""
    narrow, wide = np.zeros((7, num), dtype=np.int32), np.zeros((2, num), dtype=np.int64)
    pieces = ItemPieces(samples=narrow[0], start=narrow[1], length=narrow[2], trees=PieceTrees(*narrow[3:], *wide))
    pieces.trees.depth[:] = WHOLE
    return pieces


def for_kernels(trees: ItemTrees) -> ItemTrees:
    """Convert the items of a store to read-only arrays, as kernels take them."""
    return ItemTrees._make(read_only(np.ascontiguousarray(values)) for values in trees)


def tree_figures(trees: ItemTrees, pieces: ItemPieces) -> TreeFigures:
    """Count the savings of shared prefixes in these pieces. O(branches)."""
    given, num = pieces.trees, pieces.num_branches
    piece, _, ends = piece_branches(trees, pieces)
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    lengths = np.minimum(ends, np.where(is_flat, pieces.length, given.depth)[piece])
    longest = np.maximum.reduceat(lengths, offsets_of(num)[:-1]) if len(num) else num
    return TreeFigures(
        tokens_padded=int((longest * num).sum()),
        tokens_flat=int(lengths.sum()),
        tokens_unique=int(pieces.length.sum(dtype=np.int64)),
        attention_flat=int(np.square(lengths).sum()),
        attention_tree=int(given.work.sum()),
        path_tokens=int(given.path_tokens.sum()),
    )
