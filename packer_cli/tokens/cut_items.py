"""What pieces keep of their items.

A piece keeps the segments that its branches pass through and that begin above its depth, each as far as that; a branch
that is cut ends where its path ends. `packer_cli.plan.core.items` counts by the same rule.

Price: a few numpy passes over the segments of the items, times the height of the trees; tokens are not touched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer_cli.format.ragged import Int64Array, borders_of, expand, offsets_of, owners
from packer_cli.format.tree_parts import BatchItems
from packer_cli.plan.core.types import begins_run
from packer_cli.tokens.item_pieces import Cuts


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
