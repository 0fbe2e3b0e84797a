"""Items: what a plan packs whole, with the tokens that their branches share counted once; and how long ones are cut.

An item (`format.trees`) takes of a capacity the greater of its unique tokens and its loss terms (M: the tokens of each
branch from its first loss token on, the most log-probabilities that a loss computes). Its path tokens (K: what a
varlen kernel gathers in every layer) have a limit in percent of the capacity.

An item over the capacity is cut at a depth that leaves every branch a loss token, or divided among pieces of
consecutive branches, which repeat their path. A piece keeps the segments that its branches pass through and that begin
above its depth.

Sources: Tree Training (arXiv 2511.00413), Preference Packing (arXiv 2602.24082). Price: O(segments) for all items; for
those that are cut, times the logarithm of their tokens or branches; of the checker, O(segments + pieces).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import ItemCounts, TreeFigures
from packer_cli.format.ragged import expand, offsets_of, owners
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.check import check_pieces, forbid, require
from packer_cli.plan.core.groups import SizeRule
from packer_cli.plan.core.types import WHOLE, Int32Array, Int64Array, Lost, Pieces, read_only


def cut_items(
    trees: ItemTrees, whole: Pieces, chosen: Int32Array | None, over: Int32Array, rule: SizeRule
) -> tuple[Pieces, Lost]:
    """Cut the items of an epoch: the pieces to pack, and the branches that are left out or cut off.

    A pair or a group is cut at the greatest depth at which it fits, turns are divided into as few runs of branches
    as fit one after another, and of these a branch that is too long alone is cut at a depth. Where no depth leaves
    each branch a loss token, the item or the branch is left out.

    Args:
        whole: a piece of each item, all of it.
        chosen: int32[m], rising, the items of the epoch; None for each once.
        over: int32[k], rising, the items of these over the capacity.
    """
    given = np.arange(len(whole), dtype=np.int32) if chosen is None else chosen
    offsets, found, left_out = _cut(trees, over, rule)
    pieces = whole
    if len(over):
        number, begin = np.ones(len(whole), dtype=np.int64), np.arange(len(whole))
        number[over], begin[over] = np.diff(offsets), len(whole) + offsets[:-1]
        pairs = zip(whole.columns().items(), found.columns().values(), strict=True)
        both = Pieces.of({name: np.append(one, other) for (name, one), other in pairs})
        pieces = both.take(expand(begin[given], number[given]))
    elif len(given) < len(whole) or not (np.diff(given) > 0).all():
        pieces = whole.take(given)
    is_cut, is_flat = found.depth < WHOLE, trees.kinds[found.sample] == SAMPLE
    kept = np.where(is_cut, found.depth, rule.capacity).astype(np.int32)
    is_lost = is_cut | (is_flat & (not rule.divides))
    columns = zip((found.sample, found.first_branch, found.stop_branch, kept), left_out, strict=True)
    lost = Lost._make(np.append(one[is_lost], other) for one, other in columns)
    order = np.argsort(lost.sample, kind="stable")
    return pieces, Lost._make(values[order] for values in lost)


def item_fates(
    trees: ItemTrees, whole: Pieces, pieces: Pieces, over: Int32Array, lost: Lost, rule: SizeRule
) -> dict[str, Any]:
    """Count what became of the items: fields of `SampleCounts`. O(segments + pieces)."""
    kinds, num_branches = trees.kinds, whole.num_branches
    packed = np.unique(pieces.sample)
    left_out, shortened = np.setdiff1d(over, packed), np.unique(lost.sample[lost.kept > 0])
    planned = np.union1d(packed, left_out)
    begin = pieces.first_branch + pieces.start  # Of turns in branches, of a flat sample in tokens.
    least = np.full(len(kinds), WHOLE, dtype=np.int32)
    np.minimum.at(least, pieces.sample, begin)
    divided = np.unique(pieces.sample[begin > least[pieces.sample]])
    turns_lost = (lost.stop_branch - lost.first_branch) * (kinds[lost.sample] == TURNS)
    turns_cut, turns_left_out = int(turns_lost[lost.kept > 0].sum()), int(turns_lost[lost.kept == 0].sum())

    def number_of(items: Int32Array, kind: int) -> int:
        return int((kinds[items] == kind).sum())

    counts = ItemCounts(
        pairs=number_of(packed, PAIR),
        pairs_cut=number_of(shortened, PAIR),
        pairs_left_out=number_of(left_out, PAIR),
        groups=number_of(packed, GROUP),
        groups_cut=number_of(shortened, GROUP),
        groups_left_out=number_of(left_out, GROUP),
        conversations=number_of(packed, TURNS),
        conversations_divided=number_of(divided, TURNS),
        turns=int(num_branches[planned[kinds[planned] == TURNS]].sum()) - turns_left_out,
        turns_cut=turns_cut,
        turns_left_out=turns_left_out,
        samples_cut=number_of(shortened, SAMPLE),
        samples_left_out=number_of(left_out, SAMPLE),
        over_path_limit=int((whole.sizes(rule.limits[:1])[over] <= rule.capacity).sum()),
    )
    numbers = {"split": len(divided), "truncated": len(shortened), "dropped": len(left_out)}
    return numbers | {"items": counts, "trees": tree_figures(trees, pieces)}


def check_items(
    trees: ItemTrees, whole: Pieces, pieces: Pieces, chosen: Int32Array | None, lost: Lost, rule: SizeRule
) -> None:
    """Prove that the pieces have each branch as often as asked for, cut by the rule alone.

    Raises:
        PlanError: they do not.
    """
    left_out = Lost._make(values[lost.kept == 0] for values in lost)
    require(len(pieces) == 0 or int(pieces.length.min()) > 0, "a piece is empty")
    _check_ranges(pieces, trees)
    found = Pieces.of({name: values.copy() for name, values in pieces.columns().items()})
    _measure(trees, found)
    numbers = (each.columns().values() for each in (found, pieces))
    require(all(map(np.array_equal, *numbers)), "the numbers of a piece are not those of its branches")
    items = np.arange(len(trees.kinds), dtype=np.int32) if chosen is None else chosen
    times, offsets = np.bincount(items, minlength=len(trees.kinds)), trees.branch_offsets
    changes = np.zeros(int(offsets[-1]) + 1, dtype=np.int64)
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    begins = ~is_flat | (pieces.start == 0)
    np.add.at(changes, (offsets[pieces.sample] + pieces.first_branch)[begins], 1)
    np.add.at(changes, (offsets[pieces.sample] + pieces.stop_branch)[begins], -1)
    np.add.at(changes, offsets[left_out.sample] + left_out.first_branch, times[left_out.sample])
    np.add.at(changes, offsets[left_out.sample] + left_out.stop_branch, -times[left_out.sample])
    item_of = owners(np.diff(offsets))
    wrong = np.cumsum(changes[:-1]) != times[item_of]
    forbid(wrong, lambda branch: f"a branch of item {item_of[branch]} is not in as many pieces as were asked for")
    _check_cuts(pieces, trees, whole, rule)
    dropped = left_out.sample[trees.kinds[left_out.sample] == SAMPLE]
    wanted = items[(trees.kinds[items] == SAMPLE) & ~np.isin(items, dropped)]
    lengths = trees.segment_ends[trees.segment_offsets[:-1]]
    check_pieces(pieces.take(np.flatnonzero(is_flat)), lengths, wanted, is_whole=rule.divides)


def _cut(trees: ItemTrees, items: Int32Array, rule: SizeRule) -> tuple[Int64Array, Pieces, Lost]:
    """Cut items (int32[k], rising) over the capacity.

    Returns:
        Where the pieces of each begin, and the end of the last; the pieces; and the branches that none has.
    """
    from packer_cli.plan.core.item_kernels import cut  # Flat samples need not wait for it.

    kinds, num_branches = trees.kinds[items], np.diff(trees.branch_offsets)[items].astype(np.int32)
    offsets = np.zeros(len(items) + 1, dtype=np.int64)
    if rule.overflow in ("drop", "error"):
        return offsets, empty_pieces(0), Lost(items, np.zeros_like(items), num_branches, np.zeros_like(items))
    tokens = trees.segment_ends[trees.segment_offsets[items]].astype(np.int64)
    most = np.where(kinds == TURNS, num_branches, np.where(kinds == SAMPLE, -(-tokens // rule.capacity), 1))
    pieces = empty_pieces(int(most.sum()))
    left_out = Lost._make(np.zeros((4, int(num_branches.sum())), dtype=np.int32))
    branches = (pieces.first_branch, pieces.stop_branch, pieces.depth)
    to_write = (pieces.sample, pieces.start, pieces.length, branches, left_out, offsets)
    num_left = cut(for_kernels(trees), read_only(items), rule.most, rule.divides, *to_write)
    found = Pieces.of({name: values[: offsets[-1]] for name, values in pieces.columns().items()})
    _measure(trees, found)
    return offsets, found, Lost._make(values[:num_left] for values in left_out)


def whole_items(trees: ItemTrees) -> Pieces:
    """Make a piece for each item of a store, all of it, in the order of its rows. O(segments)."""
    num = len(trees.kinds)
    pieces = empty_pieces(num)
    pieces.sample[:] = np.arange(num)
    pieces.stop_branch[:] = np.diff(trees.branch_offsets)
    pieces.length[:] = trees.segment_ends[trees.segment_offsets[:-1]]
    _measure(trees, pieces)
    return replace(pieces, samples=None)


def _measure(trees: ItemTrees, pieces: Pieces) -> None:
    """Write what pieces of items take to them, which have the lengths of flat samples."""
    from packer_cli.plan.core.item_kernels import measure  # Flat samples need not wait for it.

    sample, _, length, first, stop, depth, *takes = pieces.columns().values()
    measure(for_kernels(trees), sample, (first, stop, depth), (length, *takes))


def piece_branches(trees: ItemTrees, pieces: Pieces) -> tuple[Int64Array, Int64Array, Int64Array]:
    """List the n branches of pieces, one piece after another: int64[n] each. O(branches).

    Returns:
        Of each branch the number of its piece; its own among those of the store; and its tokens, before it is cut.
    """
    num, sample = pieces.num_branches, pieces.sample
    piece, branch = owners(num), expand(trees.branch_offsets[sample] + pieces.first_branch, num)
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


def empty_pieces(num: int) -> Pieces:
    """Make pieces to be written to, none of which is cut."""
    narrow, wide = np.zeros((7, num), dtype=np.int32), np.zeros((2, num), dtype=np.int64)
    sample, start, length, first, stop, depth, loss_terms = narrow
    depth[:] = WHOLE
    return Pieces(
        samples=sample, start=start, length=length, first_branch=first, stop_branch=stop, depth=depth,
        loss_terms=loss_terms, work=wide[0], path_tokens=wide[1],
    )  # fmt: skip


def for_kernels(trees: ItemTrees) -> ItemTrees:
    """Convert the items of a store to read-only arrays, as kernels take them."""
    return ItemTrees._make(read_only(np.ascontiguousarray(values)) for values in trees)


def tree_figures(trees: ItemTrees, pieces: Pieces) -> TreeFigures:
    """Count the savings of shared prefixes in these pieces. O(branches)."""
    num, (_, _, path_tokens) = pieces.num_branches, pieces.needs
    assert pieces.work is not None
    piece, _, ends = piece_branches(trees, pieces)
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    lengths = np.minimum(ends, np.where(is_flat, pieces.length, pieces.depth)[piece])
    longest = np.maximum.reduceat(lengths, offsets_of(num)[:-1]) if len(num) else num
    return TreeFigures(
        tokens_padded=int((longest * num).sum()),
        tokens_flat=int(lengths.sum()),
        tokens_unique=int(pieces.length.sum(dtype=np.int64)),
        attention_flat=int(np.square(lengths).sum()),
        attention_tree=int(pieces.work.sum()),
        path_tokens=int(path_tokens.sum()),
    )


def _check_ranges(pieces: Pieces, trees: ItemTrees) -> None:
    """Require what the kernels take for granted, and that pieces of flat samples are cut by their tokens alone."""
    sample = pieces.sample
    exists = (sample >= 0) & (sample < len(trees.kinds))
    require(bool(exists.all()), "a piece is of no item")
    is_flat, whole = trees.kinds[sample] == SAMPLE, pieces.depth == WHOLE
    in_item = (pieces.first_branch >= 0) & (pieces.first_branch < pieces.stop_branch)
    in_item &= pieces.stop_branch <= np.diff(trees.branch_offsets)[sample]
    in_item &= np.where(is_flat, whole & (pieces.start >= 0), (pieces.depth >= 1) & (pieces.start == 0))
    require(bool(in_item.all()), "a piece has branches or tokens that its item has not")


def _check_cuts(pieces: Pieces, trees: ItemTrees, whole: Pieces, rule: SizeRule) -> None:
    """Require that only items over the capacity are cut, and that each branch keeps a loss token that it has."""
    is_cut = np.flatnonzero(pieces.depth < WHOLE)
    is_long = whole.sizes(rule.limits) > rule.capacity
    num_branches = np.diff(trees.branch_offsets)[pieces.sample]
    is_part = (pieces.depth < WHOLE) | (pieces.num_branches < num_branches) | (pieces.start > 0)
    require(bool(is_long[pieces.sample[is_part]].all()), "an item that is not too long is cut")
    require(bool((pieces.sizes(rule.limits) <= rule.capacity).all()), "a piece is over the capacity")
    shortened = pieces.take(is_cut)
    piece, branch, ends = piece_branches(trees, shortened)
    first = trees.first_loss[branch]
    is_lost = (first < ends) & (first >= shortened.depth[piece])
    require(not is_lost.any(), "a branch was cut before its first loss token")
