"""Samples in which no token carries a loss, and items that are incomplete without such samples, are left out here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packer_cli.corpus.ragged import take_samples
from packer_cli.corpus.types import Reject, TokenBatch
from packer_cli.format.ragged import offsets_of
from packer_cli.format.trees import GROUP, PAIR
from packer_cli.tokens.encode.items import branch_name
from packer_cli.tokens.encode.rows import Items

if TYPE_CHECKING:
    from collections import Counter

    from numpy.typing import NDArray

    from packer_cli.tokens.encode.rows import EncodedBatch

REASON = "it has no loss tokens, so a model would learn nothing from it"
LEFT_OUT = "answers without a loss, which are left out of their groups"


def drop_without_loss(batch: EncodedBatch, unused: Counter[str]) -> tuple[EncodedBatch, list[Reject]]:
    """Keep the samples in which a token carries a loss; return them, and a reject for each of the others.

    A pair with a sample without loss is rejected; groups and turns go on without the sample, if any other is left.
    Such groups are counted in `unused`.
    """
    has_loss, items = _has_loss(batch.samples), batch.items
    if has_loss.all():
        return batch, []
    first = items.offsets[:-1]
    num = np.diff(items.offsets)
    num_left = np.add.reduceat(has_loss, first, dtype=np.int64)
    stays = np.where(items.kinds == PAIR, num_left == num, num_left > 0)
    kept = has_loss & np.repeat(stays, num)
    unused[LEFT_OUT] += int(np.count_nonzero(stays & (num_left < num) & (items.kinds == GROUP)))
    offsets = offsets_of(num_left[stays])
    values = {name: of_items[stays] for name, of_items in items.values.items()}
    left = Items(offsets, items.kinds[stays], items.roles[kept], items.rewards[kept], values)
    rejects = []
    for k in np.flatnonzero(~stays).tolist():
        begin, end = items.offsets[k : k + 2].tolist()
        why = REASON
        if num_left[k]:
            role = int(items.roles[begin + has_loss[begin:end].argmin()])
            why = f"{branch_name(PAIR, role)}: it has no loss tokens, so the pair is left out"
        rejects.append(Reject(int(batch.samples.lines[begin]), why))
    samples = take_samples(batch.samples, np.flatnonzero(kept))
    return replace(batch, samples=samples, is_open=batch.is_open[kept], items=left), rejects


def _has_loss(samples: TokenBatch) -> NDArray[np.bool_]:
    """Find whether a token of each sample carries a loss (bool[n]); the first token of a sample never does."""
    starts = samples.offsets[:-1]
    if samples.loss_mask is None or not len(starts):
        return np.diff(samples.offsets) > 1
    has_loss: NDArray[np.bool_] = samples.loss_mask != 0
    has_loss[starts] = False
    return np.logical_or.reduceat(has_loss, starts)
