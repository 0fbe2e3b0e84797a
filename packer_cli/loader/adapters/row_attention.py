"""The attention of packed rows, which ranks can share, over the kernel that a transformers model had."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.packed_row import RowKeys
from packer_cli.loader.formats.flex import document_mask
from packer_cli.loader.parallel.attention import packed_attention, ulysses_attention

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
    attend = partial(_KERNELS[former], _Call(before, packed_row, options))
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return ulysses_attention(q, k, v, None, packed_row.group, attend)[None], None


class _Call(NamedTuple):
    """Call of a kernel: what it gets besides queries, keys and values."""

    before: Callable[..., Any]
    """The attention that the model had."""
    row: RowKeys
    options: Mapping[str, Any]
    """Options of the layer."""

    def kept(self) -> dict[str, Any]:
        """Return options that a kernel with masks takes."""
        if self.options.get("s_aux") is not None and self.row.group is not None:
            raise ConfigError("the model has attention sinks, one a head, which shared rows would need divided")
        names = ("scaling", "sliding_window", "softcap", "s_aux")
        return {name: self.options[name] for name in names if name in self.options}


def _sdpa(call: _Call, query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
    row, options = call.row, call.options
    _require_keys(row)
    unlike = "a soft cap" if options.get("softcap") else "attention sinks" if options.get("s_aux") is not None else ""
    if unlike:
        raise ConfigError(
            f'the model has {unlike}; load it with attn_implementation="flash_attention_2", or "flex_attention"'
        )
    scale, window = options.get("scaling"), options.get("sliding_window")
    return packed_attention(query, key, value, row.borders, scale, row.key_borders, row.kv_index, window)


def _flash(call: _Call, query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
    row = call.row
    _require_keys(row)
    tensors = _in_batches(query, row.keys(key), row.keys(value))
    found: Tensor = call.before(*tensors, None, **call.kept(), **row.varlen)[0][0]
    return found


def _require_keys(row: RowKeys) -> None:
    if row.mask is not None:
        raise ConfigError("the model does not have attention 'flex_attention': choose format 'tree', not 'tree-flex'")


def _flex(call: _Call, query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
    row, window = call.row, call.options.get("sliding_window")
    if row.mask is None and row.is_tree:
        raise ConfigError("the model has attention 'flex_attention': choose format 'tree-flex', not 'tree'")
    if window not in row.masks:
        if row.mask is None:
            row.masks[window] = document_mask(torch.tensor(row.borders), query.device, window=window)
        else:
            row.masks[window] = row.mask.make(device=query.device, window=window)
    found: Tensor = call.before(*_in_batches(query, key, value), row.masks[window], **call.kept())[0][0]
    return found


def _in_batches(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield tensors [T, heads, dim] as [1, heads, T, dim]."""
    return (x.transpose(0, 1)[None] for x in tensors)


_KERNELS = {
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
