"""Pieces of items, as a plan cuts them: some consecutive branches, each perhaps cut at a depth.

A piece keeps the segments that its branches pass through and that begin above its depth, each as far as that; a branch
that is cut ends where its path ends. `packer_cli.plan.core.items` counts by the same rule.

Price: a few numpy passes over the segments of the items, times the height of the trees; tokens are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer_cli.format.arrays import Columns
from packer_cli.format.constants import REFERENCE_VALUES
from packer_cli.format.items import BRANCH_LISTS, SEGMENT_LISTS, all_trees, unique_tokens
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.format.ragged import Lists, begins_run, borders_of, expand, offsets_of, owners
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.token_parts import Spans
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.types import WHOLE, Int64Array, Pieces
from packer_cli.tokens.copying import Among, Arrays, take_lists


def take_items(arrays: Arrays, batch: Int64Array, row: Int64Array, *, is_weighted: bool) -> Columns:
    """Take m items, in order, with their loss spans. O(segments + branches + spans), and some us a record batch.

    Args:
        batch, row: int64 [m]: the record batch of each item, and its row there.
        is_weighted: whether loss spans have weights.
    """
    spans = (STARTS, STOPS, WEIGHTS) if is_weighted else (STARTS, STOPS)
    found: Columns = {}
    for names in (SEGMENT_LISTS[:1], SEGMENT_LISTS[1:], BRANCH_LISTS, spans):
        found |= take_lists(arrays, batch, row, *names)
    of_rows = Among(batch)
    return found | {name: of_rows.take(arrays(name, "numbers"), row) for name in ("item_kind", *ITEM_VALUES)}


def item_trees(batches: Sequence[Columns]) -> ItemTrees:
    """Join the items of all record batches, one batch after another; at least one."""

    def join(name: str) -> Lists:
        of_each = [columns[name] for columns in batches]
        sizes = np.concatenate([np.diff(each.offsets) for each in of_each])
        return Lists(offsets_of(sizes), np.concatenate([each.values for each in of_each]))

    parents, branches, counts = (join(name) for name in ("segment_parents", "branch_segments", "branch_loss_spans"))
    has_loss, spans = counts.values > 0, offsets_of(counts.values)[:-1]
    first_loss = np.full(len(has_loss), 2**31 - 1, dtype=np.int32)
    first_loss[has_loss] = np.concatenate([columns[STARTS].values for columns in batches])[spans[has_loss]]
    of_each = [all_trees(columns) for columns in batches]
    return ItemTrees(
        kinds=np.concatenate([columns["item_kind"] for columns in batches]),
        segment_offsets=parents.offsets,
        segment_ends=np.concatenate([trees.ends() for trees in of_each]).astype(np.int32),
        segment_parents=parents.values,
        branch_offsets=branches.offsets,
        branch_segments=branches.values,
        first_loss=first_loss,
    )


def stops_of(items: Columns, pieces: Pieces) -> Int64Array:
    """Find the depth (int64[m]) where the branches of each piece stop; those of a sample begin at `start`."""
    is_sample = items["item_kind"] == SAMPLE
    return np.where(is_sample, pieces.start.astype(np.int64) + pieces.length, pieces.depth)


def are_of(items: Columns, pieces: Pieces) -> bool:
    """Whether pieces are of these items, so that they can be cut."""
    first, stop, stops = pieces.first_branch, pieces.stop_branch, stops_of(items, pieces)
    wrong = (first < 0) | (stop > np.diff(items["branch_segments"].offsets)) | (first >= stop)
    wrong |= (pieces.start < 0) | (pieces.start >= stops)
    wrong |= (items["item_kind"] == SAMPLE) & (stops > unique_tokens(items))
    return not wrong.any()


def branch_spans(items: Columns, pieces: Pieces) -> tuple[Spans, Int64Array]:
    """Find the loss spans of the branches of pieces, and the piece of each branch."""
    piece, branch = _branches(items, pieces)
    counts = items["branch_loss_spans"].values
    num, first = counts[branch], offsets_of(counts)[branch]
    starts, stops = (items[name].values[expand(first, num)] for name in (STARTS, STOPS))
    weights = items[WEIGHTS].values[expand(first, num)] if WEIGHTS in items else None
    spans, begin = Spans(starts, stops, owners(num), weights), pieces.start.astype(np.int64)
    return spans.clipped(begin[piece], (stops_of(items, pieces) - begin)[piece]), piece


def _branches(items: Columns, pieces: Pieces) -> tuple[Int64Array, Int64Array]:
    """Find for each branch of the pieces the piece, and its number among the branches of the items."""
    num = pieces.num_branches
    return owners(num), expand(items["branch_segments"].offsets[:-1] + pieces.first_branch, num)


def cut_items(items: Columns, pieces: Pieces) -> tuple[Columns, Lists, Int64Array]:
    """Cut items; `are_of` must confirm the pieces.

    Returns:
        The pieces as items, without their loss spans; and the runs of tokens of each: where they begin in the item,
        and their sizes (int64[r]).
    """
    trees, item, begin = all_trees(items), owners(np.diff(items["segment_parents"].offsets)), pieces.start
    parents, levels, begins = trees.segment_parents, trees.levels(), trees.depths()
    branch, stop = _branches(items, pieces)[1], stops_of(items, pieces)
    is_kept = np.zeros(len(parents), dtype=np.bool_)
    is_kept[trees.branch_segments[branch]] = True
    for level in reversed(levels[1:]):
        is_kept[parents[level[is_kept[level]]]] = True
    is_kept &= begins < stop[item]
    last = np.arange(len(parents))  # The last segment that is kept on the way down to each one.
    for level in levels[1:]:
        is_below = level[~is_kept[level]]
        last[is_below] = last[parents[is_below]]
    kept = np.flatnonzero(is_kept)
    of = item[kept]
    offsets = np.searchsorted(of, np.arange(len(pieces) + 1))
    number = np.cumsum(is_kept) - 1 - offsets[item]
    skipped = np.maximum(begin[of] - begins[kept], 0)
    sizes = np.minimum(trees.lengths[kept], stop[of] - begins[kept]) - skipped
    above, branches = parents[kept], offsets_of(pieces.num_branches)
    found = items | {
        "segment_starts": borders_of(offsets, sizes),
        "segment_parents": Lists(offsets, np.where(above < 0, -1, number[above]).astype(np.int32)),
        "branch_segments": Lists(branches, number[last[trees.branch_segments[branch]]].astype(np.int32)),
    }
    found |= {name: Lists(branches, items[name].values[branch]) for name in BRANCH_LISTS[1:]}
    # A reference model's log-probabilities are sums over all tokens, also those that are cut off.
    is_cut = pieces.depth < WHOLE
    found |= {name: np.where(is_cut, np.float32(np.nan), items[name]) for name in REFERENCE_VALUES}
    place = items["segment_starts"].values[kept + of].astype(np.int64) + skipped
    first = np.flatnonzero(begins_run(of, place - offsets_of(sizes)[:-1]))  # The others continue the one before.
    run_offsets = np.searchsorted(of[first], np.arange(len(pieces) + 1))
    return found, Lists(run_offsets, place[first]), np.add.reduceat(sizes, first) if len(first) else sizes
