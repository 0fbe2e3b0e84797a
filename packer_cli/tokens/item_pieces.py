"""Pieces of items, as a plan cuts them: some consecutive branches, each perhaps cut at a depth.

A piece keeps the segments that its branches pass through and that begin above its depth, each as far as that; a branch
that is cut ends where its path ends. `packer_cli.plan.core.items` counts by the same rule.

Price: a few numpy passes over the segments of the items, times the height of the trees; tokens are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import borders_of, expand, offsets_of, owners
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.tree_parts import BatchItems
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.types import Int8Array, Int32Array, Int64Array, PieceTrees, begins_run
from packer_cli.tokens.copying import Among


class ItemTokens(NamedTuple):
    """The tokens of m pieces of items, one after another: t tokens, s loss spans."""

    input_ids: NDArray[Any]
    """uint16 or int32 [t]: unique tokens in depth-first order."""
    items: BatchItems
    """What the pieces are."""
    loss_starts: Int32Array
    """int32 [s]: places in the branch; none is the first of a branch."""
    loss_stops: Int32Array
    """int32 [s]"""
    loss_weights: NDArray[np.float32] | None
    """float32 [s]; None: the store has none"""


class Cuts(NamedTuple):
    """How m pieces are cut: some consecutive branches, and of these the tokens from one depth to another."""

    first_branch: Int32Array
    """int32 [m]"""
    stop_branch: Int32Array
    """int32 [m]"""
    start: Int64Array
    """int64 [m]: 0 of trees."""
    stop: Int64Array
    """int64 [m]"""

    @classmethod
    def of(cls, trees: PieceTrees, start: NDArray[np.integer], length: NDArray[np.integer], kinds: Int8Array) -> Cuts:
        """Those of a plan's pieces, of items of these kinds."""
        begin = start.astype(np.int64)
        stop = np.where(kinds == SAMPLE, begin + length, trees.depth)
        return cls(trees.first_branch, trees.stop_branch, begin, stop)


def take_items(batches: Sequence[BatchItems], batch: Int64Array, row: Int64Array) -> BatchItems:
    """m items, in order. O(segments + branches), and a few us for each record batch.

    Args:
        batches: of all record batches.
        batch, row: int64 [m]: the record batch of each item, and its row there.
    """

    def take(name: str, among: Among, place: Int64Array) -> NDArray[Any]:
        return among.take([getattr(items, name) for items in batches], place)

    of_rows = Among(batch)
    found: dict[str, NDArray[Any]] = {name: take(name, of_rows, row) for name in ("kinds", *ITEM_VALUES)}
    for offsets, names in _LISTS.items():
        first, stop = (take(offsets, of_rows, row + k).astype(np.int64) for k in (0, 1))
        among, place = Among(batch[owners(stop - first)]), expand(first, stop - first)
        found[offsets] = offsets_of(stop - first).astype(np.int32)
        found |= {name: take(name, among, place) for name in names}
        if offsets == "segment_offsets":  # An item has one more start than segments.
            num = stop - first + 1
            found["segment_starts"] = take("segment_starts", Among(batch[owners(num)]), expand(first + row, num))
    return BatchItems(**found)


def item_trees(batches: Sequence[BatchItems], loss_starts: Sequence[NDArray[np.int32]]) -> ItemTrees:
    """The items of all record batches, one batch after another; at least one.

    Args:
        loss_starts: int32, of the loss spans of each batch.
    """

    def join(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(items, name) for items in batches])

    def join_offsets(name: str) -> Int64Array:
        return offsets_of(np.concatenate([np.diff(getattr(items, name)) for items in batches]))

    counts = join("branch_loss_spans")
    first_loss = np.full(len(counts), 2**31 - 1, dtype=np.int32)
    first_loss[counts > 0] = np.concatenate(loss_starts)[offsets_of(counts)[:-1][counts > 0]]
    return ItemTrees(
        kinds=join("kinds"),
        segment_offsets=join_offsets("segment_offsets"),
        segment_lengths=join("segment_lengths"),
        segment_parents=join("segment_parents"),
        branch_offsets=join_offsets("branch_offsets"),
        branch_segments=join("branch_segments"),
        first_loss=first_loss,
    )


def are_of(cuts: Cuts, items: BatchItems) -> bool:
    """Whether pieces are of these items, so that they can be cut."""
    wrong = (cuts.first_branch < 0) | (cuts.stop_branch > np.diff(items.branch_offsets))
    wrong |= (cuts.first_branch >= cuts.stop_branch) | (cuts.start < 0) | (cuts.start >= cuts.stop)
    wrong |= (items.kinds == SAMPLE) & (cuts.stop > items.num_tokens)
    return not wrong.any()


_LISTS = {
    "segment_offsets": ("segment_parents",),
    "branch_offsets": ("branch_segments", "branch_roles", "branch_loss_spans", "rewards"),
}
"""Of `BatchItems`: offsets, and what they divide."""


class Runs(NamedTuple):
    """The tokens of m pieces, as runs of tokens of their items."""

    offsets: Int64Array
    """int64 [m+1]"""
    starts: Int64Array
    """int64 [r]: in the item."""
    sizes: Int64Array
    """int64 [r]"""


def cut_items(items: BatchItems, cuts: Cuts) -> tuple[BatchItems, Runs]:
    """The pieces as items, but for their loss spans, and where their tokens are; `are_of` must confirm the cuts."""
    trees, item = items.trees(), owners(np.diff(items.segment_offsets))
    parents, levels = trees.segment_parents, trees.levels()
    num_branches = cuts.stop_branch - cuts.first_branch
    branch = expand(items.branch_offsets[:-1] + cuts.first_branch, num_branches)
    begins = trees.depths()
    is_kept = np.zeros(len(parents), dtype=np.bool_)
    is_kept[trees.branch_segments[branch]] = True
    for level in reversed(levels[1:]):
        is_kept[parents[level[is_kept[level]]]] = True
    is_kept &= begins < cuts.stop[item]
    last = np.arange(len(parents))  # The last segment that is kept on the way down to each one.
    for level in levels[1:]:
        is_below = level[~is_kept[level]]
        last[is_below] = last[parents[is_below]]
    kept = np.flatnonzero(is_kept)
    of = item[kept]
    offsets = np.searchsorted(of, np.arange(len(items.kinds) + 1))
    number = np.cumsum(is_kept) - 1 - offsets[item]
    skipped = np.maximum(cuts.start[of] - begins[kept], 0)
    sizes = np.minimum(trees.lengths[kept], cuts.stop[of] - begins[kept]) - skipped
    pieces = items._replace(
        segment_offsets=offsets.astype(np.int32),
        segment_starts=borders_of(offsets, sizes).values,
        segment_parents=np.where(parents[kept] < 0, -1, number[parents[kept]]).astype(np.int32),
        branch_offsets=offsets_of(num_branches).astype(np.int32),
        branch_segments=number[last[trees.branch_segments[branch]]].astype(np.int32),
        branch_roles=items.branch_roles[branch],
        rewards=items.rewards[branch],
    )
    place = items.segment_starts[kept + of] + skipped  # In the item: all of them may have more than 2^31 tokens.
    first = np.flatnonzero(begins_run(of, place - offsets_of(sizes)[:-1]))  # The others continue the one before.
    run_offsets = np.searchsorted(of[first], np.arange(len(items.kinds) + 1))
    return pieces, Runs(run_offsets, place[first], np.add.reduceat(sizes, first) if len(first) else sizes)
