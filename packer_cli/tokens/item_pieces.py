"""Pieces of items, as a plan cuts them: some consecutive branches, each perhaps cut at a depth (see `cut_items`).

No kernels here: commands that only open a store need not load numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.tree_parts import BatchItems
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.types import Int8Array, Int32Array, Int64Array, PieceTrees
from packer_cli.tokens.copying import Among, expand


class ItemTokens(NamedTuple):
    """The tokens and trees of m pieces of items, one after another: t tokens, S segments, n branches, s loss spans."""

    input_ids: NDArray[Any]
    """uint16 or int32 [t]: unique tokens in depth-first order."""
    segment_offsets: Int64Array
    """int64 [m+1]"""
    segment_lengths: Int32Array
    """int32 [S]"""
    segment_parents: Int32Array
    """int32 [S]: as in `format.trees.Trees`, counted in the piece, like the next."""
    branch_offsets: Int64Array
    """int64 [m+1]"""
    branch_segments: Int32Array
    """int32 [n]"""
    branch_roles: Int8Array
    """int8 [n]"""
    branch_loss_spans: Int32Array
    """int32 [n]: loss spans of each branch."""
    rewards: NDArray[np.float32]
    """float32 [n]; NaN: it has none."""
    loss_starts: Int32Array
    """int32 [s]: places in the branch; none is the first of a branch."""
    loss_stops: Int32Array
    """int32 [s]"""
    loss_weights: NDArray[np.float32] | None
    """float32 [s]; None: the store has none"""
    kinds: Int8Array
    """int8 [m]: of each piece's item, as in `format.trees`."""
    values: dict[str, NDArray[np.float32]]
    """float32 [m] each, by the names in `ITEM_VALUES`; NaN where an item has none."""


class Cuts(NamedTuple):
    """How m pieces are cut: each takes some branches, and those are cut; or, of a flat sample, some tokens."""

    first_branch: Int32Array
    """int32 [m]"""
    stop_branch: Int32Array
    """int32 [m]"""
    depth: Int32Array
    """int32 [m]"""
    start: Int64Array
    """int64 [m]: of a flat sample, its first token."""
    length: Int64Array
    """int64 [m]: of a flat sample, its tokens."""

    @classmethod
    def of(cls, trees: PieceTrees, start: NDArray[np.integer], length: NDArray[np.integer]) -> Cuts:
        """Those of a plan's pieces."""
        return cls(*trees[:3], start.astype(np.int64), length.astype(np.int64))


class Kept(NamedTuple):
    """What m pieces keep of their items."""

    segment_offsets: Int64Array
    """int64 [m+1]"""
    segment_lengths: Int32Array
    """int32 [S]"""
    segment_parents: Int32Array
    """int32 [S]"""
    branch_segments: Int32Array
    """int32 [n]: of the branches of all pieces, one after another."""
    run_offsets: Int64Array
    """int64 [m+1]: runs of tokens in the item."""
    run_starts: Int64Array
    """int64 [r]"""
    run_sizes: Int64Array
    """int64 [r]"""

    @property
    def num_tokens(self) -> Int64Array:
        """int64 [m]"""
        ends = np.append(0, np.cumsum(self.run_sizes))
        return cast(Int64Array, np.diff(ends[self.run_offsets]))


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
        item, place = expand(first, stop - first)
        among = Among(batch[item])
        found[offsets] = np.append(0, np.cumsum(stop - first)).astype(np.int32)
        found |= {name: take(name, among, place) for name in names}
        if offsets == "segment_offsets":  # An item has one more start than segments.
            item, place = expand(first + row, stop - first + 1)
            found["segment_starts"] = take("segment_starts", Among(batch[item]), place)
    return BatchItems(**found)


def item_trees(batches: Sequence[BatchItems], loss_starts: Sequence[NDArray[np.int32]]) -> ItemTrees:
    """The items of all record batches, one batch after another; at least one.

    Args:
        loss_starts: int32, of the loss spans of each batch.
    """

    def join(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(items, name) for items in batches])

    def join_offsets(name: str) -> Int64Array:
        return np.append(
            0, np.cumsum(np.concatenate([np.diff(getattr(items, name)) for items in batches]), dtype=np.int64)
        )

    return ItemTrees(
        kinds=join("kinds"),
        segment_offsets=join_offsets("segment_offsets"),
        segment_lengths=join("segment_lengths"),
        segment_parents=join("segment_parents"),
        branch_offsets=join_offsets("branch_offsets"),
        branch_segments=join("branch_segments"),
        first_loss=np.concatenate([*map(_first_loss, batches, loss_starts)]),
    )


def _first_loss(items: BatchItems, loss_starts: NDArray[np.int32]) -> Int32Array:
    counts = items.branch_loss_spans
    found = np.full(len(counts), 2**31 - 1, dtype=np.int32)
    has_loss = counts > 0
    found[has_loss] = loss_starts[(np.cumsum(counts, dtype=np.int64) - counts)[has_loss]]
    return found


def are_of(cuts: Cuts, items: BatchItems) -> bool:
    """Whether pieces are of these items, so that they can be cut."""
    last = items.segment_offsets[1:] + np.arange(len(items.kinds))
    wrong = (cuts.first_branch < 0) | (cuts.stop_branch > np.diff(items.branch_offsets))
    wrong |= (cuts.first_branch >= cuts.stop_branch) | (cuts.depth < 1)
    wrong |= (cuts.start < 0) | ((items.kinds == SAMPLE) & (cuts.start + cuts.length > items.segment_starts[last]))
    return not wrong.any()


_LISTS = {
    "segment_offsets": ("segment_parents",),
    "branch_offsets": ("branch_segments", "branch_roles", "branch_loss_spans", "rewards"),
}
"""Of `BatchItems`: offsets, and what they divide."""
