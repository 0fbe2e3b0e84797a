"""The columns of packs of items (`format.trees`), from what the token store gathers of their pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Lists
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.plan.core.types import Int64Array

if TYPE_CHECKING:  # It loads numba.
    from packer_cli.tokens.item_pieces import ItemTokens

Columns = dict[str, NDArray[Any] | Lists]


def running_sums(offsets: Int64Array, length: NDArray[np.integer]) -> Lists:
    """For each pack, the running sum of its lengths with a leading 0 (int32).

    Args:
        offsets: int64[p+1]: pack k has the lengths `offsets[k]` to `offsets[k + 1] - 1`.
    """
    num_packs = len(offsets) - 1
    ends = np.cumsum(length, dtype=np.int64)
    before = np.concatenate([[0], ends])[offsets[:-1]]
    values = np.zeros(len(length) + num_packs, dtype=np.int32)
    place = np.arange(len(length)) + np.repeat(np.arange(num_packs), np.diff(offsets)) + 1
    values[place] = ends - np.repeat(before, np.diff(offsets))
    return Lists(offsets + np.arange(num_packs + 1), values)


def token_columns(gathered: ItemTokens, offsets: Int64Array) -> Columns:
    """The columns of what the store holds: tokens, trees and loss, and what items bring. O(tokens).

    Args:
        offsets: int64[p+1]: pack k has the pieces `offsets[k]` to `offsets[k + 1] - 1`.
    """
    segments, branches = gathered.segment_offsets[offsets], gathered.branch_offsets[offsets]
    starts = running_sums(segments, gathered.segment_lengths)
    # The first segment of each piece, in its pack.
    first = gathered.segment_offsets[:-1] - np.repeat(segments[:-1], np.diff(offsets))
    parents = gathered.segment_parents + np.repeat(first, np.diff(gathered.segment_offsets))
    parents[gathered.segment_parents < 0] = -1
    ends = gathered.branch_segments + np.repeat(first, np.diff(gathered.branch_offsets))
    roots = np.flatnonzero(gathered.segment_parents < 0)
    of_trees = np.add.reduceat(gathered.segment_lengths, roots, dtype=np.int64)
    spans = np.append(0, np.cumsum(gathered.branch_loss_spans, dtype=np.int64))[branches]
    num_tokens = starts.values[starts.offsets[1:] - 1]
    columns: Columns = {
        "input_ids": Lists(np.append(0, np.cumsum(num_tokens, dtype=np.int64)), gathered.input_ids),
        STARTS: Lists(spans, gathered.loss_starts),
        STOPS: Lists(spans, gathered.loss_stops),
        "segment_starts": starts,
        "segment_parents": Lists(segments, parents.astype(np.int32)),
        "branch_segments": Lists(branches, ends.astype(np.int32)),
        "branch_roles": Lists(branches, gathered.branch_roles),
        "branch_loss_spans": Lists(branches, gathered.branch_loss_spans),
        "rewards": Lists(branches, gathered.rewards),
        "item_kinds": Lists(offsets, gathered.kinds),
        **{name: Lists(offsets, values) for name, values in gathered.values.items()},
        "cu_seqlens": running_sums(np.searchsorted(roots, segments), of_trees),
    }
    if gathered.loss_weights is not None:
        columns[WEIGHTS] = Lists(spans, gathered.loss_weights)
    return columns
