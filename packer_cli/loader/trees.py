"""Micro-batches of rows whose samples share prefixes (`format.trees`): as trees, or flat, as pairs.

A row of trees is built like a flat one whose samples are the trees: in depth-first order, the next token of a token
is the next one in the row. Positions, labels, and what is counted by branch then follow from the trees.

A *loss term* is a token that a branch trains. A shared token has a term for each branch that trains it, and weighs
as much as these together. Source: TRL's packing for AsyncGRPO (`trl.experimental.async_grpo.packing`), whose names
the batches have; Tree Training, arXiv 2511.00413; for pairs, Preference Packing, arXiv 2602.24082.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import Int64Array, Lists, expand
from packer_cli.format.ranks import RankRow
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import Pack
from packer_cli.format.trees import Trees
from packer_cli.loader.build_batch import BatchBuilder, MicroBatch

_NONE = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, kw_only=True)
class TreeBuilder(BatchBuilder):
    """Builds micro-batches that keep the trees of their rows; padding is a root of its own, without a branch."""

    unit: ClassVar[str] = "item"

    def build(self, pack: Pack, row: RankRow, epoch: int) -> MicroBatch:
        """Build as `BatchBuilder.build`; `position_ids` are depths, the segments are the trees, the samples branches.

        Price: that of a flat row, and O(K + M): 0.4 ms in all for 16K tokens.
        """
        trees = pack.trees
        flat = pack._replace(cu_seqlens=trees.root_borders(), loss_starts=_NONE, loss_stops=_NONE, loss_weights=None)
        micro = BatchBuilder.build(self, flat, row, epoch)
        padded = _with_padding(trees, int(micro.cu_seqlens[-1]))
        paths = padded.paths(padded.leaves())
        places, branches, weights = _loss_terms(pack, padded, paths, is_weighted=self.is_weighted)
        length = len(micro.input_ids)
        start = micro.row_rank * length if micro.sliced else 0
        here = np.flatnonzero((places >= start) & (places < start + length))
        token_index = places[here] - start
        following = np.flatnonzero((places + 1 >= start) & (places + 1 < start + length))
        micro.labels[places[following] + 1 - start] = pack.input_ids[places[following] + 1]
        micro.shift_labels[token_index] = pack.input_ids[places[here] + 1]
        micro.position_ids[:] = padded.positions()[start : start + length]
        micro.sample_num_loss_tokens = np.bincount(branches, minlength=len(trees.branch_segments))
        if self.is_weighted:
            micro.loss_weight = float(weights.sum(dtype=np.float64))
        own = {name: values.copy() for name, values in padded._asdict().items()}
        micro.items = _items(pack) | own | {"token_index": token_index, "segment_id": branches[here]}
        last = trees.segment_starts[trees.branch_segments + 1].astype(np.int64) - 1 - start
        micro.trees, micro.paths = padded, paths
        micro.last_index = np.where((last >= 0) & (last < length), last, -1)
        micro.shift_loss_weights = np.bincount(token_index, weights[here], minlength=length).astype(np.float32)
        return micro


@dataclass(frozen=True, kw_only=True)
class PairBuilder(BatchBuilder):
    """Builds flat micro-batches of pairs, which share nothing: all chosen samples of the row, then all rejected."""

    unit: ClassVar[str] = "item"

    def build(self, pack: Pack, row: RankRow, epoch: int) -> MicroBatch:
        """Build the batch of B pairs, see `BatchBuilder.build`."""
        # All chosen branches before all rejected ones.
        order = np.arange(2 * len(pack.item_kinds)).reshape(-1, 2).T.ravel()
        micro = BatchBuilder.build(self, _flattened(pack, order), row, epoch)
        micro.items = _items(pack, order)
        return micro


def _loss_terms(
    pack: Pack, trees: Trees, paths: Lists, *, is_weighted: bool
) -> tuple[Int64Array, Int64Array, NDArray[np.float32]]:
    """Return the M loss terms, by branch: the token that predicts (int64), the branch (int64), the weight.

    Args:
        paths: those of the leaves.
        is_weighted: whether terms weigh as much as their spans; if not, 1.
    """
    branch = np.arange(len(trees.branch_segments)).repeat(pack.branch_loss_spans)
    counts = (pack.loss_stops - pack.loss_starts).astype(np.int64)
    path = trees.leaves().searchsorted(trees.branch_segments[branch])
    first = paths.offsets[path] + pack.loss_starts - 1  # The token before a span predicts its first one.
    terms = expand(first, counts)
    weights = pack.loss_weights if is_weighted and pack.loss_weights is not None else np.ones(len(counts))
    return paths.values[terms], branch.repeat(counts), weights.astype(np.float32).repeat(counts)


def _with_padding(trees: Trees, length: int) -> Trees:
    """Return the trees of the padded row."""
    starts, parents, ends = trees
    if starts[-1] == length:
        return trees
    return Trees(np.append(starts, np.int32(length)), np.append(parents, np.int32(-1)), ends)


_OF_BRANCHES = ("branch_roles", "item_ids", "rewards")
_OF_ITEMS = ("item_kinds", "item_branches", *ITEM_VALUES)


def _items(pack: Pack, order: Int64Array | None = None) -> dict[str, np.ndarray]:
    """Return what a batch says of the items, integers as int64; `order` is that of the branches."""
    found = {}
    for name in (*_OF_BRANCHES, *_OF_ITEMS):
        values = getattr(pack, name)
        if order is not None and name in _OF_BRANCHES:
            values = values[order]
        found[name] = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
    return found


def _flattened(pack: Pack, order: Int64Array) -> Pack:
    """Flatten a pack to its branches in this order, each with all its tokens."""
    trees = pack.trees
    paths = trees.paths(trees.branch_segments[order])
    counts = pack.branch_loss_spans.astype(np.int64)
    spans = expand((counts.cumsum() - counts)[order], counts[order])
    begins = paths.offsets[:-1].repeat(counts[order])
    return pack._replace(
        input_ids=pack.input_ids[paths.values],
        cu_seqlens=paths.offsets.astype(np.int32),
        loss_starts=pack.loss_starts[spans] + begins,
        loss_stops=pack.loss_stops[spans] + begins,
        loss_weights=None if pack.loss_weights is None else pack.loss_weights[spans],
        sample_ids=pack.sample_ids[order],
    )
