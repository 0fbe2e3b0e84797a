"""The items of samples on their way into a part of the token store.

numba is loaded where there are items of several branches: workers that only tokenize flat samples need it not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import to_arrow
from packer_cli.format.ragged import Lists
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.trees import GROUP, SAMPLE, SHARE_FROM
from packer_cli.tokens.encode.rows import Items


def join_items(each: Sequence[Items]) -> Items:
    """Join the items of several batches of samples, one after another.

    One branch to which no value belongs is a sample, as of a conversation with one turn; a group stays one.
    """
    ends = np.cumsum([0, *(len(items.roles) for items in each)])
    starts = [items.offsets[:-1] + end for items, end in zip(each, ends.tolist(), strict=False)]
    offsets = np.append(np.concatenate(starts), ends[-1])
    kinds, roles, rewards = (
        np.concatenate([getattr(items, name) for items in each]) for name in ("kinds", "roles", "rewards")
    )
    values = {name: np.concatenate([items.values[name] for items in each]) for name in ITEM_VALUES}
    first = offsets[:-1]
    is_plain = (np.diff(offsets) == 1) & (kinds != GROUP) & np.isnan([rewards[first], *values.values()]).all(axis=0)
    roles[first[is_plain]], kinds[is_plain] = 0, SAMPLE
    return Items(offsets, kinds, roles, rewards, values)


def item_columns(
    branches: Lists, items: Items, num_spans: NDArray[np.int64], *, share_prefixes: bool
) -> tuple[Lists, dict[str, pa.Array]]:
    """Make the unique tokens of items, a list of each, and the columns that only parts with trees have. O(tokens).

    Args:
        branches: the ids of each.
        num_spans: int64[n]: loss spans of each.
    """
    from packer_cli.tokens.prefix_trees import NOTHING_SHARED, make_trees

    input_ids, trees = make_trees(branches, items.offsets, SHARE_FROM if share_prefixes else NOTHING_SHARED)
    columns: dict[str, NDArray[Any] | Lists] = {
        **trees,
        "branch_roles": Lists(items.offsets, items.roles),
        "branch_loss_spans": Lists(items.offsets, num_spans.astype(np.int32)),
        "rewards": Lists(items.offsets, items.rewards),
        "item_kind": items.kinds,
        **items.values,
    }
    return input_ids, {name: to_arrow(values) for name, values in columns.items()}
