"""A causal language model of transformers that runs packed rows: attention that ranks share, and the loss.

`run_packed_rows(model)` patches a model, before DDP, FSDP or DeepSpeed wrap it. Then `model(packed_row=row, ...)`
returns what the row takes, such as a loss, and `model(...)` does what it did before.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.adapters.row_attention import set_row_attention
from packer_cli.loader.passes import IGNORE_INDEX

__all__ = ["check_packed_rows", "run_packed_rows"]


def run_packed_rows(model: nn.Module, *, gives_rewards: bool = False) -> nn.Module:
    """Patch a model, and return its innermost causal language model. To do so again does no harm.

    Args:
        model: wrapped by PEFT, or not.
        gives_rewards: whether it is a sequence classification model, whose output layer is `score`.

    Raises:
        ConfigError: it is none, or it cannot run packed rows.
    """
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        raise ConfigError("prompts and prefixes of PEFT would come before a row, not before its samples; use LoRA")
    inner: Any = model
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    name = type(inner).__name__
    if not hasattr(inner, "get_decoder") or _head(inner, gives_rewards=gives_rewards) is None:
        kind = "sequence classification" if gives_rewards else "causal language"
        raise ConfigError(f"{name} is not a {kind} model of transformers with an output layer")
    set_row_attention(inner)
    if not hasattr(inner.forward, "runs_packed_rows"):  # Or no longer: another library's forward pass is in its place.
        _patch_forward(inner, gives_rewards=gives_rewards)
    return cast("nn.Module", inner)


def require_no_state(model: Any) -> None:
    """Raise ConfigError if a model has layers that cannot run trees."""
    if stateful := _stateful_layers(model.config.get_text_config()):
        raise ConfigError(
            f"{type(model).__name__} has {stateful} layers, whose states would run from one branch into the next; "
            "pack with --no-share-prefixes"
        )


def _head(model: Any, *, gives_rewards: bool) -> Any:
    """Return the output layer; None if there is none."""
    return getattr(model, "score", None) if gives_rewards else model.get_output_embeddings()


def _patch_forward(model: Any, *, gives_rewards: bool) -> None:

    def forward(self: Any, *arguments: Any, packed_row: PackedRow | None = None, **others: Any) -> Any:
        if packed_row is None:
            return self._forward_of_batches(*arguments, **others)
        _require_runnable(self, packed_row)
        if packed_row.brings_inputs:
            arguments, others = (), packed_row.inputs
        # Now, as PEFT or resize_token_embeddings may have put another in its place.
        head = _patched_head(self, _head(self, gives_rewards=gives_rewards))
        decoded = self.get_decoder()(*arguments, packed_row=packed_row, **{**others, "use_cache": False})
        return head(decoded.last_hidden_state, packed_row=packed_row)

    # Not functools.wraps: accelerate walks __wrapped__, and would call the original.
    forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    forward.runs_packed_rows = True  # type: ignore[attr-defined]
    if not hasattr(model, "_forward_of_batches"):
        model._forward_of_batches = model.forward  # In the model, so that a copy calls its own.
    model.forward = MethodType(forward, model)


def _require_runnable(model: Any, row: PackedRow) -> None:
    name, config = type(model).__name__, model.config.get_text_config()
    if row.is_tree:
        require_no_state(model)
    if row.group is not None and (unlike := _why_not_shared(config)):
        raise ConfigError(f"{name} {unlike}; plan groups of SP degree 1 for it")
    if model.training and getattr(config, "output_router_logits", False) and config.router_aux_loss_coef:
        raise ConfigError(
            f"{name} has an auxiliary loss of its router, which packed rows do not have; set output_router_logits to "
            "False in its config, or router_aux_loss_coef to 0, which SFTConfig has too"
        )


def _stateful_layers(config: Any) -> str:
    """Name the kinds of a model's layers that are not attention; empty if there are none."""
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    return ", ".join(sorted(kinds - {"full_attention", "sliding_attention", "attention"}))


def _why_not_shared(config: Any) -> str:
    """Say why GPUs cannot share a row of such a model; empty if they can."""
    if stateful := _stateful_layers(config):
        return f"has {stateful} layers, whose states would begin anew in each GPU's part of a row"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") if isinstance(rope, Mapping) else None
    if kind in ("dynamic", "longrope"):
        return f"has positions of type {kind}, which depend on the length that a GPU sees"
    return ""


def _patched_head(model: Any, head: Any) -> Any:
    """Patch the output layer, in whose forward pass the loss is made: FSDP gathers the layer's weights once for that.

    FSDP also casts what the forward pass returns, so nothing but the loss of the whole row may pass there.
    """
    config = model.config.get_text_config()

    def forward(self: Any, hidden: torch.Tensor, packed_row: PackedRow | None = None) -> Any:
        return self._logits(hidden) if packed_row is None else packed_row.take(self, config, hidden)

    if not hasattr(head, "_logits"):
        head._logits = head.forward
        head.forward = MethodType(forward, head)
    return head


_LENGTH = 12
"""Tokens of a sample of the check; more than any convolution's width."""
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Tolerance of losses in unlike shapes, relative; for other types, where the model rounds to eight bits, 3 %."""
_EXACT = 1e-5
"""Tolerance of a first sample's loss, in a row and alone: greater where the model computes in fewer than 24 bits."""
_LEAK = {True: 1e-5, False: 3e-3}
"""Tolerance of losses in one shape, by whether the model is exact; rounding may change with the experts chosen."""


def check_packed_rows(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError unless a packed row has the loss of its samples one by one.

    Runs two rows of two samples, which differ in the first of them, and both samples of one row alone, through the
    model's own forward pass and logits. With FSDP, call it on every rank. Price: four forward passes of 24 tokens at
    most. Does not change random states.

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
    """
    name = type(getattr(model, "module", model)).__name__
    with evaluating(model):
        try:
            why = _find_mixing(model, device)
        except (AttributeError, TypeError) as error:
            why = f"its forward pass ends in {type(error).__name__}: {error}"
    if why:
        raise ConfigError(f"{name} cannot run packed rows: {why}; train it without packing")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Try a model while the block runs: without gradients, and with modules as for evaluation."""
    trains = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in trains.items():
            module.training = was_training


def _find_mixing(model: nn.Module, device: torch.device) -> str:
    """Say why a model cannot run packed rows; empty if it can."""
    inner: Any = getattr(model, "module", model)
    vocabulary = inner.config.get_text_config().vocab_size
    ids = torch.arange(2 * _LENGTH) * 7919 % vocabulary
    other_ids = torch.where(torch.arange(2 * _LENGTH) < _LENGTH, (ids + 1) % vocabulary, ids)
    rows = []
    for row_ids, num_labelled in ((ids, 2), (ids, 1), (other_ids, 1)):
        rows.append(PackedRow(_made_up(row_ids, num_labelled), None, factor=1.0, device=device))
        rows[-1].run(model)
    if not rows[0].num_attended:
        return "its layers do not take their attention from transformers' interface"
    whole, before, after = (row.loss.double().item() for row in rows)
    first, second = (_loss_alone(model, sample, device) for sample in ids.split(_LENGTH))
    alone = first + second
    if not math.isfinite(whole):
        return f"the loss of a row is {whole}, that of its samples one by one {alone:.4g}"
    is_exact = abs(whole - before - first) < _EXACT * first
    if abs(before - after) > _LEAK[is_exact] * before:
        return f"its layers mix samples: another one before it changes the loss of a sample from {before} to {after}"
    off = abs(whole - alone) / alone
    if off > _TOLERANCE.get(next(model.parameters()).dtype, 0.03):
        return (
            f"two samples in a row have a loss that is {off:.1%} off from theirs one by one, because it changes its "
            "logits in an unknown way, or its layers mix samples"
        )
    return ""


def _loss_alone(model: nn.Module, sample: torch.Tensor, device: torch.device) -> float:
    logits = model(input_ids=sample[None].to(device), use_cache=False).logits[0, :-1].double()
    return F.cross_entropy(logits, sample[1:].to(device), reduction="sum").item()


def _made_up(ids: torch.Tensor, num_labelled: int) -> dict[str, Any]:
    """Make up a batch of two samples, of which the last ones have a loss."""
    positions = torch.arange(_LENGTH).repeat(2)
    has_loss = (positions > 0) & (torch.arange(2 * _LENGTH) >= (2 - num_labelled) * _LENGTH)
    return {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "labels": torch.where(has_loss, ids, int(IGNORE_INDEX))[None],
        "cu_seq_lens_q": torch.tensor([0, _LENGTH, 2 * _LENGTH], dtype=torch.int32),
        "max_length_q": _LENGTH,
    }
