"""The loss of a packed row, from the hidden states of its tokens with a loss; the logits are never whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from packer_cli.loader.adapters.packed_row import PackedRow

CHUNK = 2**25
"""Logits that are in memory at once."""


def row_loss(head: Callable[..., torch.Tensor], config: Any, hidden: torch.Tensor, row: PackedRow) -> torch.Tensor:
    """The sum of the losses of this rank's tokens, times the row's factor: a scalar of float32, or of float64.

    The output layer runs over the tokens with a loss alone, `CHUNK` logits at a time, and again in the backward pass.

    Args:
        head: the output layer.
        config: of the model.
        hidden: [1, t, hidden], what the decoder returns.
    """
    kept, targets, weights = row.kept, row.targets, row.weights
    if not len(kept):  # The output layer must have a gradient on every rank.
        kept, targets = kept.new_zeros(1), targets.new_zeros(1)
        weights = hidden.new_zeros(1, dtype=torch.float32)
    size = max(1, CHUNK // config.vocab_size)
    tokens = hidden[0].index_select(0, kept)
    total = tokens.new_zeros((), dtype=torch.promote_types(tokens.dtype, torch.float32))
    losses = partial(_losses, head, config)
    for begin in range(0, len(kept), size):
        part = slice(begin, begin + size)
        weight = None if weights is None else weights[part]
        total = total + checkpoint(losses, tokens[part], targets[part], weight, use_reentrant=False)
    total = total * row.factor
    row.loss = total.detach()
    return total


def _losses(
    head: Callable[..., torch.Tensor],
    config: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    logits = finished_logits(head(hidden), config)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if weights is None:
        return F.cross_entropy(logits, targets, reduction="sum")
    return F.cross_entropy(logits, targets, reduction="none") @ weights.to(logits)


def finished_logits(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """What a model does to the output layer's logits: it scales them (Cohere, Granite), or caps them (Gemma 2)."""
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    cap = getattr(config, "final_logit_softcapping", None)
    if scale is not None:
        logits = logits * scale
    if divisor is not None:
        logits = logits / divisor
    return logits if cap is None else torch.tanh(logits / cap) * cap
