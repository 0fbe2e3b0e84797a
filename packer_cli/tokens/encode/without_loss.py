"""Leaves out samples without loss tokens, from which a model would learn nothing.

Such are chats without an answer, turns without the part that `--loss-on` asks for, records of weight 0, and tokenized
records whose labels are all -100.

Price: 1 ns a token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packer_cli.corpus.ragged import take_samples
from packer_cli.corpus.types import Reject, TokenBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.tokens.types import EncodedBatch

REASON = "it has no loss tokens, so a model would learn nothing from it"


def drop_without_loss(batch: EncodedBatch) -> tuple[EncodedBatch, list[Reject]]:
    """The samples in which a token carries a loss, and a reject for each of the others."""
    has_loss = _has_loss(batch)
    if has_loss.all():
        return batch, []
    kept = take_samples(
        TokenBatch(batch.lines, batch.offsets, batch.input_ids, batch.loss_mask), np.flatnonzero(has_loss)
    )
    rejects = [Reject(line, REASON) for line in batch.lines[~has_loss].tolist()]
    return replace(
        batch,
        offsets=kept.offsets,
        input_ids=kept.input_ids,
        loss_mask=kept.loss_mask,
        lines=kept.lines,
        is_open=batch.is_open[has_loss],
    ), rejects


def _has_loss(batch: EncodedBatch) -> NDArray[np.bool_]:
    """bool[n]: whether a token carries a loss; the first one of a sample never does."""
    starts = batch.offsets[:-1]
    lengths = np.diff(batch.offsets)
    if batch.loss_mask is None:
        return lengths > 1
    has_loss = batch.loss_mask != 0
    has_loss[starts] = False
    if not len(starts):
        return has_loss
    return np.logical_or.reduceat(has_loss, starts)
