"""Rows whose samples share prefixes: TRL's names, for varlen kernels, and a block mask, for FlexAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from packer_cli.format.ragged import Lists
from packer_cli.format.trees import Trees
from packer_cli.loader.build_batch import MicroBatch
from packer_cli.loader.formats.base import Batch, as_rows, open_batch, tensors_of
from packer_cli.loader.formats.flex import RowMask, tree_mask


def adapt(micro: MicroBatch) -> Batch:
    """Return `input_ids, position_ids, shift_labels` int64 [1, t], of this rank's t tokens, and what the trees add.

    For kernels, of the whole row: each run of queries attends to the tokens of its path, which it ends. There are as
    many runs as leaves, L, and padding is one of them.

    - `tree_kv_index` int64 [K]: the tokens of the paths;
    - `tree_cu_seqlens_q`, `tree_cu_seqlens_k` int32 [L+1]: the borders of the runs, and of their paths;
    - `tree_max_seqlen_q`, `tree_max_seqlen_k`: ints, the longest of both.

    For losses, of this rank's tokens: M terms, and n branches.

    - `token_index` int64 [M]: the token that predicts each term; `segment_id` int64 [M]: the branch that trains it;
    - `loss_weights` float32 [t], aligned with `shift_labels`: how many branches train the token, or in a set with
      weights the sum of theirs;
    - `last_index` int64 [n]: the last token of each branch, for reward heads; -1 if another rank has it.

    Source: TRL's `experimental/async_grpo/packing.py`, whose kernel reads these names; there every segment is a run,
    and K the sum of all their paths.
    """
    assert micro.trees is not None
    assert micro.paths is not None
    return _batch(micro, kernel_keys(micro.trees, micro.paths))


def adapt_flex(micro: MicroBatch) -> Batch:
    """Return the tensors of `adapt`, with an `attention_mask` in place of the keys for varlen kernels.

    The mask is a `BlockMask` of the whole row, which does not grow with K.
    """
    assert micro.trees is not None
    return _batch(micro, {"attention_mask": row_mask(micro.trees)})


def kernel_keys(trees: Trees, paths: Lists) -> dict[str, Any]:
    """Return what varlen kernels take of a row; `paths` are those of its leaves."""
    stops = trees.segment_starts[trees.leaves() + 1]
    queries, keys = np.append(np.int32(0), stops), paths.offsets.astype(np.int32)
    return {
        "tree_kv_index": torch.from_numpy(paths.values),
        "tree_cu_seqlens_q": torch.from_numpy(queries),
        "tree_cu_seqlens_k": torch.from_numpy(keys),
        "tree_max_seqlen_q": int(np.diff(queries).max()),
        "tree_max_seqlen_k": int(np.diff(keys).max()),
    }


def row_mask(trees: Trees) -> RowMask:
    """Return the mask that FlexAttention takes of a row."""
    stops, positions = (
        values.astype(np.int32) for values in (np.repeat(trees.stops(), trees.lengths), trees.positions())
    )
    return tree_mask(torch.from_numpy(stops), torch.from_numpy(positions))


def two_branches(shared: int, first: int, second: int) -> Trees:
    """Make a tree of so many tokens that two branches share, and that each has alone."""
    starts = np.cumsum([0, shared, first, second], dtype=np.int32)
    return Trees(starts, np.array([-1, 0, 0], np.int32), np.array([1, 2], np.int32))


def _batch(micro: MicroBatch, of_attention: dict[str, Any]) -> Batch:
    borders = torch.from_numpy(micro.cu_seqlens)
    keys = {
        **as_rows(tensors_of(micro, {"input_ids": "input_ids", "position_ids": "position_ids"})),
        # A copy: `labels` and `shift_labels` share memory.
        "shift_labels": torch.from_numpy(micro.shift_labels[None].copy()),
        **of_attention,
        **tensors_of(micro, {"last_index": "last_index", "loss_weights": "shift_loss_weights"}),
        "cu_seqlens": borders,
    }
    return open_batch(micro, keys, borders)
