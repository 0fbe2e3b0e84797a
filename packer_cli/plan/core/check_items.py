"""The checker of the pieces of items, used by tests and every run. Price: O(segments + pieces)."""

from __future__ import annotations

import numpy as np

from packer_cli.format.ragged import owners
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.check import check_pieces, forbid, require
from packer_cli.plan.core.items import measure_pieces, piece_branches, whole_items
from packer_cli.plan.core.samples import SizeRule
from packer_cli.plan.core.types import WHOLE, Int32Array, ItemPieces, Lost


def check_items(
    pieces: ItemPieces, trees: ItemTrees, items: Int32Array | None, rule: SizeRule, left_out: Lost
) -> None:
    """Prove that the pieces have each branch of each item as often as requested, cut by the rules alone.

    Args:
        items: int32[k], the requested items, increasing, with repetitions; None for each once.
        left_out: branches that no piece has.

    Raises:
        PlanError: they do not.
    """
    given = pieces.trees
    require(len(pieces) == 0 or int(pieces.length.min()) > 0, "a piece is empty")
    _check_ranges(pieces, trees)
    found = measure_pieces(trees, pieces)
    numbers = (each.columns().values() for each in (found, pieces))
    require(all(map(np.array_equal, *numbers)), "the numbers of a piece are not those of its branches")
    items = np.arange(len(trees.kinds), dtype=np.int32) if items is None else items
    times, offsets = np.bincount(items, minlength=len(trees.kinds)), trees.branch_offsets
    changes = np.zeros(int(offsets[-1]) + 1, dtype=np.int64)
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    begins = ~is_flat | (pieces.start == 0)
    np.add.at(changes, (offsets[pieces.sample] + given.first_branch)[begins], 1)
    np.add.at(changes, (offsets[pieces.sample] + given.stop_branch)[begins], -1)
    np.add.at(changes, offsets[left_out.sample] + left_out.first_branch, times[left_out.sample])
    np.add.at(changes, offsets[left_out.sample] + left_out.stop_branch, -times[left_out.sample])
    item_of = owners(np.diff(offsets))
    wrong = np.cumsum(changes[:-1]) != times[item_of]
    forbid(wrong, lambda branch: f"a branch of item {item_of[branch]} is not in as many pieces as were asked for")
    _check_cuts(pieces, trees, rule)
    dropped = left_out.sample[trees.kinds[left_out.sample] == SAMPLE]
    wanted = items[(trees.kinds[items] == SAMPLE) & ~np.isin(items, dropped)]
    lengths = trees.segment_ends[trees.segment_offsets[:-1]]
    check_pieces(pieces.take(np.flatnonzero(is_flat)), lengths, wanted, is_whole=rule.divides)


def _check_ranges(pieces: ItemPieces, trees: ItemTrees) -> None:
    """Require what the kernels take for granted, and that pieces of flat samples are cut by their tokens alone."""
    given, sample = pieces.trees, pieces.sample
    exists = (sample >= 0) & (sample < len(trees.kinds))
    require(bool(exists.all()), "a piece is of no item")
    is_flat, whole = trees.kinds[sample] == SAMPLE, given.depth == WHOLE
    in_item = (given.first_branch >= 0) & (given.first_branch < given.stop_branch)
    in_item &= given.stop_branch <= np.diff(trees.branch_offsets)[sample]
    in_item &= np.where(is_flat, whole & (pieces.start >= 0), (given.depth >= 1) & (pieces.start == 0))
    require(bool(in_item.all()), "a piece has branches or tokens that its item has not")


def _check_cuts(pieces: ItemPieces, trees: ItemTrees, rule: SizeRule) -> None:
    """Require that only items over the capacity are cut, and that each branch keeps a loss token that it has."""
    given = pieces.trees
    is_cut = np.flatnonzero(given.depth < WHOLE)
    is_long = whole_items(trees).sizes(rule.limits) > rule.capacity
    num_branches = np.diff(trees.branch_offsets)[pieces.sample]
    is_part = (given.depth < WHOLE) | (pieces.num_branches < num_branches) | (pieces.start > 0)
    require(bool(is_long[pieces.sample[is_part]].all()), "an item that is not too long is cut")
    require(bool((pieces.sizes(rule.limits) <= rule.capacity).all()), "a piece is over the capacity")
    cut = pieces.take(is_cut)
    piece, branch, ends = piece_branches(trees, cut)
    first = trees.first_loss[branch]
    is_lost = (first < ends) & (first >= cut.trees.depth[piece])
    require(not is_lost.any(), "a branch was cut before its first loss token")
