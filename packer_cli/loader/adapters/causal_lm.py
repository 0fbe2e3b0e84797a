"""A causal language model of transformers that runs packed rows: attention that ranks share, and the loss.

`run_packed_rows(model)` patches a model, before DDP, FSDP or DeepSpeed wrap it. Then `model(packed_row=row, ...)`
returns what the row takes, such as a loss, and `model(...)` does what it did before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.packed_row import PackedRow, RowKeys
from packer_cli.loader.formats.flex import document_mask
from packer_cli.loader.parallel.attention import packed_attention, ulysses_attention
from packer_cli.loader.separation import find_fault

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

    def forward(self: Any, hidden: Tensor, packed_row: PackedRow | None = None) -> Any:
        return self._logits(hidden) if packed_row is None else packed_row.take(self, config, hidden)

    if not hasattr(head, "_logits"):
        head._logits = head.forward
        head.forward = MethodType(forward, head)
    return head


def check_packed_rows(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError unless a packed row has the loss of its samples one by one.

    Runs two rows of two samples, which differ in the first of them, and both samples of one row alone, through the
    model's own forward pass and logits. With FSDP, call it on every rank. Price: five forward passes of 24 tokens at
    most. Does not change random states.

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
    """
    is_attended = True

    def run(batch: Mapping[str, Any]) -> Tensor:
        nonlocal is_attended
        row = PackedRow(batch, None, factor=1.0, device=device)
        found: Tensor = -row.run(model)[None]
        is_attended &= row.num_attended > 0
        return found

    try:
        why = find_fault(model, device, run, is_tree=False)
    except (AttributeError, TypeError) as error:
        why = f"its forward pass ends in {type(error).__name__}: {error}"
    if not is_attended:
        why = "its layers do not take their attention from transformers' interface"
    if why:
        name = type(getattr(model, "module", model)).__name__
        raise ConfigError(f"{name} cannot run packed rows: {why}; train it without packing")


_PREFIX = "hbpack_"
"""Before the name of the attention that a model had, of the one that takes its place: so each model keeps its own."""
_IS_PACKED: ContextVar[bool] = ContextVar("is_packed", default=False)


def set_row_attention(model: Any) -> None:
    """Put the attention of packed rows over the kernel that a model has; a model that has it stays as it is.

    Raises:
        ConfigError: packed rows do not run on that kernel, or the decoder does not hand keyword arguments on to it.
    """
    decoder = model.get_decoder()
    taken = inspect.signature(type(decoder).forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        raise ConfigError(
            f"{type(model).__name__} takes no keyword arguments for its attention, which packed rows need; do not pack"
        )
    former = model.config._attn_implementation
    if former.startswith(_PREFIX):
        return
    if former not in _KERNELS:
        raise ConfigError(
            f"{type(model).__name__} has attention {former!r}, and packed rows run on {', '.join(_KERNELS)}; load it "
            'with attn_implementation="sdpa", or "flash_attention_2"'
        )
    AttentionInterface.register(_PREFIX + former, partial(_attention, former))
    AttentionMaskInterface.register(_PREFIX + former, partial(_mask, former))
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_attn_implementation", None) == former:
            config._attn_implementation = _PREFIX + former
    running: list[Token[bool]] = []
    decoder.register_forward_pre_hook(partial(_begin, running), with_kwargs=True)
    decoder.register_forward_hook(partial(_end, running), always_call=True)


@torch.compiler.disable
def _begin(running: list[Token[bool]], decoder: Any, arguments: Any, given: Mapping[str, Any]) -> None:
    """Note before a forward pass whether it is of a row, which makes no mask: the attention knows the borders."""
    running.append(_IS_PACKED.set(given.get("packed_row") is not None))


@torch.compiler.disable
def _end(running: list[Token[bool]], *_: Any) -> None:
    _IS_PACKED.reset(running.pop())


@torch.compiler.disable  # With its exchange: a graph would be compiled anew for each row's borders and group.
def _attention(
    former: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_row: RowKeys | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend: [1, heads, t, dim] -> [1, t, heads, dim]; t is the length of this rank's part of the row."""
    before = partial(_as_before, former, module)
    if packed_row is None:
        if _IS_PACKED.get():
            raise ConfigError(f"the layers around {type(module).__name__} do not pass packed rows to it; do not pack")
        found: tuple[Tensor, Tensor | None] = before(query, key, value, attention_mask, **options)
        return found
    if options.get("dropout"):
        raise ConfigError(
            f"{type(module).__name__} has dropout of attention, which packed rows do not have; set it to 0 in the "
            "model's config: attention_dropout, or attn_pdrop"
        )
    if attention_mask is not None:
        raise ConfigError(f"{type(module).__name__} makes a mask of its own, and packed rows have none; do not pack")
    packed_row.num_attended += 1
    kernel = partial(_KERNELS[former], before, packed_row, options)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return ulysses_attention(q, k, v, None, packed_row.group, lambda *given: kernel(*given[:3]))[None], None


def _kept(row: RowKeys, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a layer that a kernel with masks takes."""
    if options.get("s_aux") is not None and row.group is not None:
        raise ConfigError("the model has attention sinks, one a head, which shared rows would need divided")
    return {name: options[name] for name in ("scaling", "sliding_window", "softcap", "s_aux") if name in options}


_Options = Mapping[str, Any]


def _sdpa(_: Any, row: RowKeys, options: _Options, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    _require_keys(row)
    unlike = "a soft cap" if options.get("softcap") else "attention sinks" if options.get("s_aux") is not None else ""
    if unlike:
        raise ConfigError(
            f'the model has {unlike}; load it with attn_implementation="flash_attention_2", or "flex_attention"'
        )
    scale, window = options.get("scaling"), options.get("sliding_window")
    return packed_attention(query, key, value, row.borders, scale, row.key_borders, row.kv_index, window)


def _flash(before: Any, row: RowKeys, options: _Options, query: Tensor, *pair: Tensor) -> Tensor:
    _require_keys(row)
    tensors = _in_batches(query, *map(row.keys, pair))
    found: Tensor = before(*tensors, None, **_kept(row, options), **row.varlen)[0][0]
    return found


def _require_keys(row: RowKeys) -> None:
    if row.mask is not None:
        raise ConfigError("the model does not have attention 'flex_attention': choose format 'tree', not 'tree-flex'")


def _flex(before: Any, row: RowKeys, options: _Options, *tensors: Tensor) -> Tensor:
    window = options.get("sliding_window")
    if row.mask is None and row.is_tree:
        raise ConfigError("the model has attention 'flex_attention': choose format 'tree-flex', not 'tree'")
    if window not in row.masks:
        if row.mask is None:
            row.masks[window] = document_mask(torch.tensor(row.borders), tensors[0].device, window=window)
        else:
            row.masks[window] = row.mask.make(device=tensors[0].device, window=window)
    found: Tensor = before(*_in_batches(*tensors), row.masks[window], **_kept(row, options))[0][0]
    return found


def _in_batches(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield tensors [T, heads, dim] as [1, heads, T, dim]."""
    return (x.transpose(0, 1)[None] for x in tensors)


_KERNELS: dict[str, Callable[..., Tensor]] = {
    "sdpa": _sdpa,
    "eager": _sdpa,
    "flash_attention_2": _flash,
    "flash_attention_3": _flash,
    "flash_attention_4": _flash,
    "flex_attention": _flex,
}


def _as_before(former: str, module: Any, *arguments: Any, **options: Any) -> Any:
    """Call the attention that the model had."""
    if former == "eager":  # Each model has its own.
        return sys.modules[type(module).__module__].eager_attention_forward(module, *arguments, **options)
    config = module.config
    config._attn_implementation = former  # flash attention reads it to choose its kernel.
    try:
        return AttentionInterface()[former](module, *arguments, **options)
    finally:
        config._attn_implementation = _PREFIX + former


@torch.compiler.disable
def _mask(former: str, *arguments: Any, **options: Any) -> Any:
    """Make no mask for a packed row; else the mask of the attention that the model had."""
    return None if _IS_PACKED.get() else AttentionMaskInterface()[former](*arguments, **options)
