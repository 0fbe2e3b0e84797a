"""Samples whose ids were given: checked against the vocabulary, and put among those that were encoded.

Price: two passes over the ids; no loop over samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_cli.corpus.ragged import join_samples, take_samples
from packer_cli.corpus.types import Reject, TokenBatch
from packer_cli.tokens.encode.rows import Samples
from packer_cli.tokens.types import EncodedBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.tokens.encode.rows import Frame


def take_given(batch: TokenBatch, frame: Frame, vocab_size: int) -> EncodedBatch:
    """The samples as they are, with EOS where `frame` adds one; those with ids outside the vocabulary are rejected."""
    rejects: list[Reject] = []
    if len(batch.input_ids) and int(batch.input_ids.max()) >= vocab_size:
        at = np.flatnonzero(batch.input_ids >= vocab_size)
        samples, first = np.unique(np.searchsorted(batch.offsets, at, side="right") - 1, return_index=True)
        rejects = [
            Reject(line, f"input_ids holds {bad}; the tokenizer's ids are 0 to {vocab_size - 1}")
            for line, bad in zip(batch.lines[samples].tolist(), batch.input_ids[at[first]].tolist(), strict=True)
        ]
        batch = take_samples(batch, np.delete(np.arange(len(batch.lines)), samples))
    # Wide types would slow what follows down; narrow ones may not hold an EOS that is added.
    ids = batch.input_ids.astype(np.uint16 if vocab_size <= 2**16 else np.int32, copy=False)
    none = np.zeros(len(batch.lines), dtype=np.bool_)
    mask = None if batch.loss_mask is None else _as_numbers(batch.loss_mask)
    end_weight = np.ones(len(none), np.float32) if batch.weight is None else batch.weight
    framed, is_open = frame.add(Samples(batch.offsets, ids, mask), none, none, end_weight)
    return EncodedBatch(
        offsets=framed.offsets,
        input_ids=framed.input_ids,
        loss_mask=framed.loss_mask,
        lines=batch.lines,
        rejects=rejects,
        num_with_special=0,
        is_open=is_open,
    )


def merge(encoded: EncodedBatch, given: EncodedBatch) -> EncodedBatch:
    """Both in the order of their lines."""
    first, second = (
        TokenBatch(
            each.lines,
            each.offsets,
            each.input_ids,
            each.loss_mask if each.loss_mask is None or each.loss_mask.dtype == np.float32 else each.loss_mask != 0,
        )
        for each in (encoded, given)
    )
    both = join_samples([first, second])
    order = np.argsort(np.concatenate([encoded.lines, given.lines]), kind="stable")
    is_open = np.concatenate([encoded.is_open, given.is_open])
    return replace(
        encoded,
        offsets=both.offsets,
        input_ids=both.input_ids,
        loss_mask=None if both.loss_mask is None else _as_numbers(both.loss_mask),
        lines=both.lines,
        rejects=sorted([*encoded.rejects, *given.rejects], key=lambda reject: reject.line),
        is_open=is_open[order],
    )


def _as_numbers(mask: NDArray[Any]) -> NDArray[Any]:
    """A mask of booleans as int8; weights as they are."""
    return mask.view(np.int8) if mask.dtype == np.bool_ else mask
