"""The loss of a packed row, from the hidden states of its tokens with a loss; the logits are never whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.passes import IGNORE_INDEX

CHUNK = 2**25
"""Logits that are in memory at once."""


@torch.compiler.disable  # A graph would be compiled anew for each number of tokens with a loss.
def row_loss(head: Any, config: Any, hidden: torch.Tensor, row: PackedRow) -> torch.Tensor:
    """The sum of the losses of this rank's tokens, times the row's factor: a scalar of float32, or of float64.

    The output layer runs over the tokens with a loss alone: in Liger's fused kernel where that is installed, else
    `CHUNK` logits at a time, and again in the backward pass.

    Args:
        head: the output layer, whose own forward pass is its attribute `_logits`.
        config: of the model.
        hidden: [1, t, hidden], what the decoder returns.
    """
    kept, targets, weights = row.kept, row.targets, row.weights
    if not len(kept):  # The output layer must have a gradient on every rank.
        kept, targets = kept.new_zeros(1), targets.new_zeros(1)
        weights = hidden.new_zeros(1, dtype=torch.float32)
    tokens = hidden[0].index_select(0, kept)
    # Never weights, with which some releases of Liger have other gradients.
    fused = _fused(head, tokens) if weights is None else None
    if fused is not None:
        total = fused(tokens, targets, config)
    else:
        total = _in_chunks(partial(_losses, head._logits, config), tokens, targets, weights, config.vocab_size)
    total = total * row.factor
    row.loss = total.detach()
    return total


def _fused(head: Any, tokens: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """Liger's output layer and loss in one, of a plain linear layer on a GPU."""
    is_plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    if not is_plain or tokens.dtype == torch.float64 or not (tokens.is_cuda or os.environ.get("TRITON_INTERPRET")):
        return None
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    except ImportError:
        return None

    def run(tokens: torch.Tensor, targets: torch.Tensor, config: Any) -> torch.Tensor:
        device, weight, bias = tokens.device.type, head.weight, head.bias
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        # The logits are linear in the tokens, so both are scaled alike.
        tokens = _scaled(tokens.to(dtype), config)
        bias = None if bias is None else _scaled(bias.to(dtype), config)
        found = LigerFusedLinearCrossEntropyFunction.apply(
            tokens, weight.to(dtype), targets, bias, None, int(IGNORE_INDEX), 0.0, 0.0, "sum",
            getattr(config, "final_logit_softcapping", None), False, torch.float32,
        )  # fmt: skip
        result: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return result

    return run


def _in_chunks(
    losses: Callable[..., torch.Tensor],
    tokens: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
    vocab_size: int,
) -> torch.Tensor:
    size = max(1, CHUNK // vocab_size)
    total = tokens.new_zeros((), dtype=torch.promote_types(tokens.dtype, torch.float32))
    for begin in range(0, len(tokens), size):
        part = slice(begin, begin + size)
        weight = None if weights is None else weights[part]
        total = total + checkpoint(losses, tokens[part], targets[part], weight, use_reentrant=False)
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
    cap = getattr(config, "final_logit_softcapping", None)
    logits = _scaled(logits, config)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _scaled(logits: torch.Tensor, config: Any) -> torch.Tensor:
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    if scale is not None:
        logits = logits * scale
    return logits if divisor is None else logits / divisor
