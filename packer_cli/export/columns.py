"""Computes per-token columns for trainers: labels, positions and sample numbers; pads rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.export.packed import Int64Array, PackedSet
from packer_cli.format.ragged import Lists, expand

NO_LOSS = -100
"""The label of a token that carries no loss."""


def labels_of(packed: PackedSet, packs: Int64Array) -> Lists:
    """Label (int32) each token by its own id if it carries a loss, else by -100; a sample's first token never does."""
    ids, mask = packed.lists("input_ids", packs), packed.loss_mask(packs)
    return Lists(ids.offsets, np.where(mask.values != 0, ids.values, np.int32(NO_LOSS)))


def shifted(labels: Lists, nothing: int = NO_LOSS) -> Lists:
    """Shift labels one token earlier: what each token predicts. The last token of a pack predicts nothing.

    Since a sample's first token carries no loss, its last one predicts nothing either.

    >>> shifted(Lists(np.array([0, 3, 5]), np.array([-100, 7, 8, -100, 9]))).values.tolist()
    [7, 8, -100, 9, -100]
    """
    values = np.full_like(labels.values, nothing)
    values[:-1] = labels.values[1:]
    values[labels.offsets[1:] - 1] = nothing
    return Lists(labels.offsets, values)


def align_lengths(lengths: Lists, aligns: Int64Array) -> Lists:
    """Round the tokens of each sample (int32) up to a multiple of its row's entry of `aligns` (int64[k])."""
    if (aligns == 1).all():
        return lengths
    align = np.repeat(aligns.astype(np.int32), np.diff(lengths.offsets))
    return Lists(lengths.offsets, -(-lengths.values // align) * align)


def pad_samples(items: Lists, lengths: Lists, sizes: Lists, value: int) -> Lists:
    """Pad the items of every pack, each sample's followed by pads. O(items).

    Args:
        lengths: items of each sample.
        sizes: the same with pads, at least as many.
        value: the pad.

    >>> one = lambda values: Lists(offsets=np.array([0, len(values)]), values=np.array(values))
    >>> pad_samples(one([5, 6, 7]), one([1, 2]), one([2, 4]), 0).values.tolist()
    [5, 0, 6, 7, 0, 0]
    """
    if sizes is lengths:
        return items
    ends = np.concatenate([[0], np.cumsum(sizes.values, dtype=np.int64)])
    moved = ends[:-1] - (np.cumsum(lengths.values, dtype=np.int64) - lengths.values)
    values = np.full(int(ends[-1]), value, dtype=items.values.dtype)
    values[np.arange(len(items.values)) + np.repeat(moved, lengths.values)] = items.values
    return Lists(ends[sizes.offsets], values)


def positions_of(lengths: Lists, token_offsets: Int64Array) -> Lists:
    """Return the position (int32) of each token in its sample.

    Args:
        lengths: tokens of each sample of the packs.
        token_offsets: int64[k+1]: where the tokens of each pack begin.
    """
    return Lists(token_offsets, expand(np.zeros_like(lengths.values), lengths.values).astype(np.int32))


def sample_numbers(lengths: Lists, token_offsets: Int64Array) -> Lists:
    """Give tokens numbers (int32): 1 for those of a pack's first sample, 2 for those of its second, and so on."""
    numbers = np.arange(len(lengths.values)) - np.repeat(lengths.offsets[:-1], np.diff(lengths.offsets)) + 1
    return Lists(token_offsets, np.repeat(numbers, lengths.values).astype(np.int32))


def all_text(texts: pa.Array) -> pa.Buffer:
    """Return the bytes of texts that a function of Arrow made, one after another."""
    _, _, data = texts.buffers()
    return data[: pc.sum(pc.binary_length(texts)).as_py()]


def padded(lists: Lists, length: int, value: int | NDArray[np.int32]) -> Lists:
    """Pad every pack's items to `length`. O(k * length).

    Args:
        value: the padding: one number, or int32[k, length], of which each row's end is used.

    >>> padded(Lists(np.array([0, 1, 3]), np.array([5, 6, 7])), 4, 0).values.tolist()
    [5, 0, 0, 0, 6, 7, 0, 0]
    """
    sizes = np.diff(lists.offsets)
    rows = np.broadcast_to(np.asarray(value, dtype=np.int32), (len(sizes), length)).copy()
    rows[np.arange(length) < sizes[:, None]] = lists.values
    return Lists(offsets=np.arange(len(sizes) + 1, dtype=np.int64) * length, values=rows.reshape(-1))
