"""The columns of packs of items (`format.trees`), from what the token store gathers of their pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.format.ragged import Int64Array, Lists, borders_of, offsets_of
from packer_cli.format.schema import ITEM_VALUES

if TYPE_CHECKING:
    from packer_cli.tokens.item_pieces import ItemTokens

Columns = dict[str, NDArray[Any] | Lists]


def token_columns(gathered: ItemTokens, offsets: Int64Array) -> Columns:
    """The columns of what the store holds: tokens, trees and loss, and what items bring. O(tokens).

    Args:
        offsets: int64[p+1]: pack k has the pieces `offsets[k]` to `offsets[k + 1] - 1`.
    """
    items = gathered.items
    trees = items.rows(offsets)
    starts, (segments, parents), (branches, _) = trees
    roots = np.flatnonzero(parents < 0)
    of_trees = np.add.reduceat(items.segment_lengths, roots, dtype=np.int64)
    spans = offsets_of(items.branch_loss_spans)[branches]
    columns: Columns = {
        "input_ids": Lists(offsets_of(starts.values[starts.offsets[1:] - 1]), gathered.input_ids),
        STARTS: Lists(spans, gathered.loss_starts),
        STOPS: Lists(spans, gathered.loss_stops),
        **trees._asdict(),
        **{name: Lists(branches, getattr(items, name)) for name in ("branch_roles", "branch_loss_spans", "rewards")},
        "item_kinds": Lists(offsets, items.kinds),
        **{name: Lists(offsets, getattr(items, name)) for name in ITEM_VALUES},
        "cu_seqlens": borders_of(np.searchsorted(roots, segments), of_trees),
    }
    if gathered.loss_weights is not None:
        columns[WEIGHTS] = Lists(spans, gathered.loss_weights)
    return columns
