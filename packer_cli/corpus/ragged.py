"""Lists of numbers in flat arrays: choose some, join several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.types import TokenBatch
from packer_cli.format.ragged import Lists, offsets_of


def join_arrays(arrays: Sequence[NDArray[Any]]) -> Lists:
    """Make each array a list; at least one."""
    return Lists(offsets_of(np.array([*map(len, arrays)])), np.concatenate(arrays))


def take_samples(batch: TokenBatch, rows: NDArray[Any]) -> TokenBatch:
    """Take these samples (int64[m]), in their order. O(tokens)."""
    ids = Lists(batch.offsets, batch.input_ids).take(rows)
    mask = None if batch.loss_mask is None else Lists(batch.offsets, batch.loss_mask).take(rows).values
    weight = None if batch.weight is None else batch.weight[rows]
    return TokenBatch(batch.lines[rows], ids.offsets, ids.values, mask, weight)


def join_samples(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Join the samples of several batches in the order of their lines; a single batch stays as it is. O(tokens)."""
    if len(batches) == 1:
        return batches[0]
    joined = TokenBatch(
        np.concatenate([batch.lines for batch in batches]),
        offsets_of(np.concatenate([np.diff(batch.offsets) for batch in batches])),
        np.concatenate([batch.input_ids for batch in batches]),
        _join_ones([(batch.loss_mask, len(batch.input_ids)) for batch in batches], np.bool_),
        _join_ones([(batch.weight, len(batch.lines)) for batch in batches], np.float32),
    )
    if (joined.lines[1:] >= joined.lines[:-1]).all():
        return joined
    return take_samples(joined, np.argsort(joined.lines, kind="stable"))


def _join_ones(columns: Sequence[tuple[NDArray[Any] | None, int]], dtype: type[np.generic]) -> NDArray[Any] | None:
    """Join columns, each with its length, one behind the other: a missing one is all ones, unless all are missing."""
    if all(column is None for column, _ in columns):
        return None
    return np.concatenate([np.ones(length, dtype) if column is None else column for column, length in columns])


def common_prefix(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Count the ids that two samples begin with in common."""
    shortest = min(len(one), len(other))
    differs = one[:shortest] != other[:shortest]
    return int(differs.argmax()) if differs.any() else shortest
