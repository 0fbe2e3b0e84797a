"""A causal language model of transformers that runs packed rows: attention that ranks share, and the loss.

`run_packed_rows(model)` patches a model, before DDP, FSDP or DeepSpeed wrap it. Then `model(packed_row=row, ...)`
returns what the row takes, such as a loss, and `model(...)` does what it did before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MethodType
from typing import Any, cast

import torch
from torch import nn

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.model_check import find_fault
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.adapters.row_attention import set_row_attention

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


def check_packed_rows(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError unless a packed row has the loss of its samples one by one.

    Runs two rows of two samples, which differ in the first of them, and both samples of one row alone, through the
    model's own forward pass and logits. With FSDP, call it on every rank. Price: four forward passes of 24 tokens at
    most. Does not change random states.

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
    """
    is_attended = True

    def run(batch: Mapping[str, Any]) -> torch.Tensor:
        nonlocal is_attended
        row = PackedRow(batch, None, factor=1.0, device=device)
        row.run(model)
        is_attended &= row.num_attended > 0
        return -row.loss[None]

    try:
        why = find_fault(model, device, run, is_tree=False)
    except (AttributeError, TypeError) as error:
        why = f"its forward pass ends in {type(error).__name__}: {error}"
    if not is_attended:
        why = "its layers do not take their attention from transformers' interface"
    if why:
        name = type(getattr(model, "module", model)).__name__
        raise ConfigError(f"{name} cannot run packed rows: {why}; train it without packing")
