"""Runs of tokens that are all trained on, or all masked, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.show.decode import Decode, decode_after, decode_runs


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Tokens in a row that are all trained on, or all masked."""

    trained: bool
    weight: float | None = None
    """Of the loss of each token, in a set with weights."""
    num_tokens: int
    text: str | None
    """None without the tokenizer."""
    input_ids: list[int]


def run_records(
    decode: Decode | None, ids: NDArray[Any], loss_mask: NDArray[Any], before: NDArray[Any] | None = None
) -> tuple[RunRecord, ...]:
    """The runs of these tokens ([t]).

    Args:
        decode: None leaves the texts out.
        before: as for `decode_after`.
    """
    is_weighted = loss_mask.dtype == np.float32
    return tuple(
        RunRecord(
            trained=run.is_trained,
            weight=run.weight if is_weighted else None,
            num_tokens=len(run.input_ids),
            text=run.text if decode else None,
            input_ids=run.input_ids,
        )
        for run in decode_after(decode_runs, decode or (lambda ids: ""), ids, loss_mask, before)
    )
