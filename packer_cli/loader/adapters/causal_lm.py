"""A causal language model of transformers that runs packed rows: attention that ranks share, and the loss.

`run_packed_rows(model)` patches a model, before DDP, FSDP or DeepSpeed wrap it. Then `model(packed_row=row, ...)`
returns a loss, and `model(...)` does what it did before.

What a row needs travels as one object in the keyword arguments of the forward pass, which transformers hands on to
each layer. Wrappers copy, cast and move tensors and dictionaries of tensors, but not an object. A layer that is
recomputed in the backward pass gets the row with which it ran.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_outputs import CausalLMOutput

from packer_cli.errors import ConfigError
from packer_cli.loader.formats import metadata_of
from packer_cli.loader.parallel.attention import packed_attention, ulysses_attention
from packer_cli.loader.passes import IGNORE_INDEX

__all__ = ["PackedRow", "check_packed_rows", "run_packed_rows", "run_row"]

_PREFIX = "hbpack_"
"""Before the name of the attention that a model had, of the one that takes its place: so each model keeps its own."""
CHUNK = 2**25
"""Logits that are in memory at once."""
_KERNELS = {"sdpa": "sdpa", "eager": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash"}
_IS_PACKED: ContextVar[bool] = ContextVar("is_packed", default=False)
"""Whether a packed row runs: then no mask is made, since the attention knows the borders."""


class PackedRow:
    """What a forward pass needs besides `input_ids` and `position_ids` of a batch of format "transformers".

    Args:
        batch: with its metadata.
        group: the ranks that share the row; None where this one has it alone.
        factor: by which the sum of the losses is multiplied, see `loader.losses`.
        device: of the model.
    """

    def __init__(
        self, batch: Mapping[str, Any], group: dist.ProcessGroup | None, *, factor: float, device: torch.device
    ) -> None:
        self.group = group
        self.longest: int = batch["max_length_q"]
        self.borders: list[int] = batch["cu_seq_lens_q"].tolist()
        self.device_borders: torch.Tensor = batch["cu_seq_lens_q"].to(device)
        labels, weights = batch.get("shift_labels"), batch.get("shift_loss_weights")
        if labels is None:  # Those of a whole row are shifted here.
            labels = F.pad(batch["labels"], (0, 1), value=int(IGNORE_INDEX))[..., 1:]
            weights = batch.get("loss_weights")
            weights = weights if weights is None else F.pad(weights, (0, 1))[..., 1:]
        kept = (labels[0] != IGNORE_INDEX).nonzero()[:, 0]
        self.kept = kept.to(device)
        """int64 [k], places of the tokens with a loss."""
        self.targets = labels[0, kept].to(device)
        """int64 [k]"""
        self.weights = None if weights is None else weights[0, kept].to(device)
        """float32 [k]"""
        self.factor = factor
        self.loss = torch.zeros((), device=device)
        """Of this rank, times the factor, once it ran; without a graph. Wrappers may round what the forward pass
        returns."""


def run_packed_rows(model: nn.Module) -> nn.Module:
    """Patch a model, and return its innermost causal language model. A model that is patched stays as it is.

    Raises:
        ConfigError: it is none, or its attention cannot run packed rows.
    """
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(inner).__name__
    if not hasattr(inner, "get_decoder") or inner.get_output_embeddings() is None:
        raise ConfigError(f"{name} is no causal language model of transformers with an output layer")
    former = inner.config._attn_implementation
    if former.startswith(_PREFIX):
        return inner
    if former not in _KERNELS:
        raise ConfigError(
            f"{name} has attention {former!r}, and packed rows run on {', '.join(_KERNELS)}; load it with "
            'attn_implementation="sdpa", or "flash_attention_2"'
        )
    if getattr(inner.config.get_text_config(), "attention_dropout", 0.0):
        raise ConfigError(f"{name} has attention dropout, which packed rows do not have; set attention_dropout to 0")
    AttentionInterface.register(_PREFIX + former, partial(_attention, former))
    AttentionMaskInterface.register(_PREFIX + former, partial(_mask, former))
    for module in inner.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_attn_implementation", None) == former:
            config._attn_implementation = _PREFIX + former
    _patch_head(inner)
    _patch_forward(inner)
    return inner


def run_row(
    model: nn.Module,
    batch: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device,
    world_size: int,
) -> torch.Tensor:
    """The loss of a batch's row: this rank's part of the mean over the loss tokens of the step (`losses.stable_loss`).

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
        batch: of format "transformers".
        group: the ranks that share the row, see `parallel.SPGroups.for_batch`; None where this one has it alone.
        device: of the model.
        world_size: over how many ranks gradients are averaged; 1 where they are summed.

    Returns:
        A scalar with its graph.
    """
    known = metadata_of(batch)
    weight = known.get("global_loss_weight", known["global_num_loss_tokens"])
    row = PackedRow(batch, group, factor=world_size / weight if weight else 0.0, device=device)
    return model(**inputs_of(batch, device), packed_row=row).loss


def inputs_of(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """What a model takes of a batch besides its row.

    Layers without attention, such as recurrent ones and convolutions, tell samples apart by it (docs/loader.md).
    """
    names = [name for name in ("input_ids", "position_ids", "seq_idx", "cu_seq_lens_q") if name in batch]
    found: dict[str, Any] = {name: batch[name].to(device) for name in names}
    found["cu_seq_lens_k"] = found["cu_seq_lens_q"]
    return found | {"max_length_q": batch["max_length_q"], "max_length_k": batch["max_length_q"]}


def _patch_forward(model: Any) -> None:
    original = model.forward

    unlike = _why_not_shared(model.config.get_text_config())

    def forward(self: Any, *arguments: Any, packed_row: PackedRow | None = None, **others: Any) -> Any:
        if packed_row is None:
            return original(*arguments, **others)
        if packed_row.group is not None and unlike:
            raise ConfigError(f"{type(self).__name__} {unlike}; plan groups of SP degree 1 for it")
        token = _IS_PACKED.set(True)
        try:
            decoded = self.get_decoder()(*arguments, packed_row=packed_row, use_cache=False, **others)
        finally:
            _IS_PACKED.reset(token)
        return CausalLMOutput(loss=self.get_output_embeddings()(decoded.last_hidden_state, packed_row=packed_row))

    # Not functools.wraps: accelerate walks __wrapped__, and would call the original.
    forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    model.forward = MethodType(forward, model)


def _why_not_shared(config: Any) -> str:
    """Why GPUs cannot share a row of such a model; empty if they can."""
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "layers_block_type", None) or ())}
    others = sorted(kinds - {"full_attention", "sliding_attention", "attention"})
    if others:
        return f"has {', '.join(others)} layers, whose states would begin anew in each GPU's part of a row"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") if isinstance(rope, Mapping) else None
    if kind in ("dynamic", "longrope"):
        return f"has positions of type {kind}, which depend on the length that a GPU sees"
    return ""


def _patch_head(model: Any) -> None:
    """The loss is made inside the output layer's forward pass, whose weights FSDP gathers once for it.

    FSDP also casts what the forward pass returns, so nothing but the loss of the whole row may pass there.
    """
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    original = head.forward

    def forward(self: Any, hidden: torch.Tensor, packed_row: PackedRow | None = None) -> torch.Tensor:
        return original(hidden) if packed_row is None else row_loss(original, config, hidden, packed_row)

    head.forward = MethodType(forward, head)


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


def _attention(
    former: str,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed_row: PackedRow | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[1, heads, t, dim] -> [1, t, heads, dim]; t is the length of this rank's part of the row."""
    before = partial(_as_before, former, module)
    if packed_row is None:
        return before(query, key, value, attention_mask, **options)
    if attention_mask is not None:
        raise ConfigError(f"{type(module).__name__} makes a mask of its own, and packed rows have none; do not pack")
    row = packed_row
    attend = partial(_flash, before, row, options) if _KERNELS[former] == "flash" else partial(_sdpa, row, options)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return ulysses_attention(q, k, v, row.borders, row.group, attend)[None], None


def _sdpa(
    row: PackedRow, options: Mapping[str, Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: Any
) -> torch.Tensor:
    window = options.get("sliding_window")
    unlike = "a soft cap" if options.get("softcap") else "attention sinks" if options.get("s_aux") is not None else ""
    if window is not None and window < row.longest:
        unlike = f"a sliding window of {window} tokens, and a sample has {row.longest}"
    if unlike:
        raise ConfigError(f'the model has {unlike}; load it with attn_implementation="flash_attention_2"')
    return packed_attention(query, key, value, row.borders, scale=options.get("scaling"))


def _flash(
    before: Callable[..., Any],
    row: PackedRow,
    options: Mapping[str, Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _: Any,
) -> torch.Tensor:
    if options.get("s_aux") is not None and row.group is not None:
        raise ConfigError("the model has attention sinks, one a head, which shared rows would need divided")
    kept = {name: options[name] for name in ("scaling", "sliding_window", "softcap", "s_aux") if name in options}
    heads = (x.transpose(0, 1)[None] for x in (query, key, value))
    borders = {"cu_seq_lens_q": row.device_borders, "cu_seq_lens_k": row.device_borders}
    borders |= {"max_length_q": row.longest, "max_length_k": row.longest}
    return before(*heads, None, **kept, **borders)[0][0]


def _as_before(former: str, module: Any, *arguments: Any, **options: Any) -> Any:
    """The attention that the model had."""
    if former == "eager":  # Each model has its own.
        return sys.modules[type(module).__module__].eager_attention_forward(module, *arguments, **options)
    config = module.config
    config._attn_implementation = former  # flash attention reads it to choose its kernel.
    try:
        return AttentionInterface()[former](module, *arguments, **options)
    finally:
        config._attn_implementation = _PREFIX + former


def _mask(former: str, *arguments: Any, **options: Any) -> Any:
    """None for a packed row; else that of the attention that the model had."""
    return None if _IS_PACKED.get() else AttentionMaskInterface()[former](*arguments, **options)


_LENGTH = 12
"""Tokens of a sample of the check; more than any convolution's width."""
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Relative to the loss; for others, where the model rounds to eight bits, 3 %. Leaks and wrong losses are greater."""


def check_packed_rows(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError unless a packed row has the loss of its samples one by one.

    Runs a row of two samples, and each of them alone through the model's own forward pass and logits. With FSDP, call
    it on every rank. Price: three forward passes of 24 tokens at most. Does not change random states.

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
    """
    inner = getattr(model, "module", model)
    ids = torch.arange(2 * _LENGTH) * 7919 % inner.config.get_text_config().vocab_size
    positions = torch.arange(_LENGTH).repeat(2)
    borders = torch.tensor([0, _LENGTH, 2 * _LENGTH], dtype=torch.int32)
    labels = torch.where(positions > 0, ids, int(IGNORE_INDEX))
    batch = {"labels": labels[None], "cu_seq_lens_q": borders, "max_length_q": _LENGTH}
    batch |= {"input_ids": ids[None], "position_ids": positions[None]}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            row = PackedRow(batch, None, factor=1.0, device=device)
            model(**inputs_of(batch, device), packed_row=row)
            alone = torch.zeros((), dtype=torch.float64, device=device)
            for sample in ids.split(_LENGTH):
                logits = model(input_ids=sample[None].to(device), use_cache=False).logits[0, :-1].double()
                alone += F.cross_entropy(logits, sample[1:].to(device), reduction="sum")
    finally:
        model.train(was_training)
    off = float((row.loss.double() - alone).abs() / alone)
    if not off < _TOLERANCE.get(next(model.parameters()).dtype, 0.03):
        raise ConfigError(
            f"{type(inner).__name__} cannot run packed rows: two samples in a row have a loss that is {off:.1%} off "
            "from theirs one by one, since its layers mix samples, or it finishes its logits in a way that is not "
            "known; train it without packing"
        )
