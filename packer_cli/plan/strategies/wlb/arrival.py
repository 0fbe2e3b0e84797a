"""The arrival stream: documents in a seeded order, in global batches of N micro-batches of W tokens (WLB-LLM, 3.2).

A loader at run time would draw them so. Step k is packed from batch k and what earlier batches left over, and a
document's delay counts from its batch. Only the document on the border of two batches is cut, in two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packer_cli.plan.core.segments import align_up, cut_in_rows
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """m documents in the order of arrival, in b global batches."""

    lengths: Int32Array
    """int32[m], aligned; each 1 .. `window`."""
    batches: Int64Array
    """int64[b+1]: batch k holds `lengths[batches[k]:batches[k+1]]`; none is empty."""
    num_micro_batches: int
    """N: micro-batches of a step."""
    window: int
    """W, the context window in tokens. A batch has N * W tokens, the last one maybe fewer."""
    linear: int = 0
    """Tokens; the work of a document is s (s + linear), see `plan.core.cost`."""
    seed: int = 0

    @property
    def num_batches(self) -> int:
        """b"""
        return len(self.batches) - 1

    @property
    def batch_of(self) -> Int64Array:
        """int64[m]: the batch of each document. O(m)."""
        return np.repeat(np.arange(self.num_batches), np.diff(self.batches))

    def first(self, num_batches: int) -> Arrivals:
        """The first batches alone."""
        batches = self.batches[: num_batches + 1]
        return replace(self, lengths=self.lengths[: batches[-1]], batches=batches)


def arrive(pieces: Pieces, tokens: int, seed: int, align: int = 1) -> Pieces:
    """The pieces in the order of arrival, cut at every multiple of `tokens`. O(m).

    Args:
        tokens: of a global batch; of a row, where rows are cut as they come.
        align: each piece takes a multiple of it, which divides `tokens`.
    """
    order = shuffled(len(pieces), rng_state(seed, Stream.ARRIVAL))
    return cut_in_rows(pieces.sample[order], pieces.start[order], pieces.length[order], tokens, align)


def in_batches(
    pieces: Pieces, num_micro_batches: int, window: int, *, linear: int = 0, seed: int = 0, align: int = 1
) -> Arrivals:
    """Pieces that `arrive` gave, in global batches. O(m)."""
    lengths = align_up(pieces.length, align)
    return Arrivals(
        lengths=lengths,
        batches=batch_offsets(lengths, num_micro_batches * window),
        num_micro_batches=num_micro_batches,
        window=window,
        linear=linear,
        seed=seed,
    )


def batch_offsets(lengths: Int32Array, tokens: int) -> Int64Array:
    """Where each global batch begins, int64[b+1]. O(m).

    Args:
        lengths: int32[m], aligned, in the order of arrival; none reaches over a multiple of `tokens`.
    """
    stop = np.cumsum(lengths, dtype=np.int64)
    num_batches = -(-int(stop[-1]) // tokens) if len(stop) else 0
    return np.searchsorted(stop, np.arange(num_batches + 1) * tokens, side="right").astype(np.int64)
