"""One rank's micro-batch, as `batch.py` builds it and the formats take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from packer_cli.format.layout import Layout
    from packer_cli.format.ranks import RankRow
    from packer_cli.format.sharding import Sharding


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """One rank's forward in one iteration, before an adapter converts it to a trainer's batch.

    T is the length of the padded row, t that of this rank's part: T / `layout.row_ranks` if the row is sliced, else T.
    Token arrays hold this rank's part; `cu_seqlens`, `max_seqlen` and all about samples describe the whole row.
    """

    input_ids: np.ndarray
    """int64 [t]"""
    position_ids: np.ndarray
    """int64 [t], from 0 in every segment"""
    labels: np.ndarray
    """int64 [t], aligned with `input_ids`; -100 for no loss and for the first token of each sample"""
    shift_labels: np.ndarray
    """int64 [t]: the label that each token must predict, shifted over the whole row and only then sliced.

    The last token of a sample never predicts the next one's first: that label is -100. May share memory with `labels`.
    """
    cu_seqlens: np.ndarray
    """int32 [segments+1], from 0 to T; any padding at the tail is the last segment, but for empty ones that make the
    number of segments fixed"""
    max_seqlen: int
    """tokens of the longest segment; T if the number of segments is fixed"""
    sample_borders: np.ndarray
    """int32 [n+1], or [n+2] with padding at the tail: where samples begin"""
    real_lengths: np.ndarray
    """int64: real tokens of each segment; the last ones may be left out if they have none"""
    sample_lengths: np.ndarray
    """int64 [n]: real tokens of each sample; may be fewer than its segment's if samples are aligned"""
    sample_num_loss_tokens: np.ndarray
    """int64 [n]"""
    sample_ids: np.ndarray
    """int64 [n], without padding"""
    loss_weights: np.ndarray | None = None
    """float32 [t], aligned with `labels`: the weight of each token's loss, 0 where the label is -100; None: there are
    no weights"""
    shift_loss_weights: np.ndarray | None = None
    """float32 [t], aligned with `shift_labels`"""
    loss_weight: float = 0.0
    """Sum of the weights of the pack; only in a set with weights"""
    row: RankRow
    layout: Layout
    """Of the replica that runs the row; `row.place` is this rank's GPU in it."""
    checkpoint_layers: int
    pack_id: int
    num_loss_tokens: int
    epoch: int
    sharding: Sharding
    """How the ranks that share the row divide it; the token arrays are only a part of it if `sliced`."""
    sliced: bool
    has_samples_as_segments: bool = True
    """Whether the segments are the samples; else the whole row is one, or a window cuts them."""
    is_aligned: bool = False
    """Whether each sample is padded to a multiple of some tokens."""

    @property
    def row_rank(self) -> int:
        """This rank's number among those that share the row."""
        return self.layout.row_rank(self.row.place)
