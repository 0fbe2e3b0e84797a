"""The items of samples on their way into a part of the token store.

numba is loaded where there are items of several branches: workers that only tokenize flat samples need it not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.corpus.types import TokenBatch
from packer_cli.format.arrays import Lists, to_arrow, to_lists
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.trees import SAMPLE, SHARE_FROM
from packer_cli.tokens.encode.rows import Items


def items_of_samples(num_samples: int) -> Items:
    """Each sample as an item."""
    none = np.full(num_samples, np.nan, dtype=np.float32)
    zeros = np.zeros(num_samples, dtype=np.int8)
    return Items(np.arange(num_samples + 1), zeros, zeros, none, dict.fromkeys(ITEM_VALUES, none))


def join_items(batches: Sequence[tuple[TokenBatch, Items | None]]) -> Items | None:
    """The items of several batches of samples, one after another; None if each is just a sample.

    One branch to which no value belongs is a sample, whatever it was made of.
    """
    if all(items is None for _, items in batches):
        return None
    each = [items_of_samples(len(samples.lines)) if items is None else items for samples, items in batches]
    ends = np.cumsum([0, *(len(items.roles) for items in each)])
    starts = [items.offsets[:-1] + end for items, end in zip(each, ends.tolist(), strict=False)]
    offsets = np.append(np.concatenate(starts), ends[-1])
    kinds, roles, rewards = (
        np.concatenate([getattr(items, name) for items in each]) for name in ("kinds", "roles", "rewards")
    )
    values = {name: _values_of(each, name) for name in ITEM_VALUES}
    first = offsets[:-1]
    is_plain = (np.diff(offsets) == 1) & np.isnan([rewards[first], *values.values()]).all(axis=0)
    if is_plain.all():
        return None
    roles[first[is_plain]], kinds[is_plain] = 0, SAMPLE
    return Items(offsets, kinds, roles, rewards, values)


def _values_of(batches: Sequence[Items], name: str) -> NDArray[np.float32]:
    """float32[i]: NaN where an item has none."""
    found = (items.values.get(name) for items in batches)
    none = (np.full(len(items.kinds), np.nan, dtype=np.float32) for items in batches)
    return np.concatenate([default if values is None else values for values, default in zip(found, none, strict=True)])


def item_columns(
    branches: Lists, items: Items, num_spans: NDArray[np.int64], *, share_prefixes: bool
) -> tuple[Lists, dict[str, pa.Array]]:
    """The unique tokens of items, a list of each, and the columns that only parts with trees have. O(tokens).

    Args:
        branches: the ids of each.
        num_spans: int64[n]: loss spans of each.
    """
    from packer_cli.tokens.prefix_trees import NOTHING_SHARED, make_trees

    made = make_trees(branches, items.offsets, SHARE_FROM if share_prefixes else NOTHING_SHARED)
    of_branches: dict[str, NDArray[Any]] = {
        "branch_roles": items.roles,
        "branch_loss_spans": num_spans.astype(np.int32),
        "rewards": items.rewards,
    }
    columns = {
        "segment_starts": to_lists(*made.segment_starts),
        "segment_parents": to_lists(*made.segment_parents),
        "branch_segments": to_lists(*made.branch_segments),
        **{name: to_lists(items.offsets, values) for name, values in of_branches.items()},
        "item_kind": to_arrow(items.kinds),
        **{name: to_arrow(items.values[name]) for name in ITEM_VALUES},
    }
    return made.input_ids, columns
