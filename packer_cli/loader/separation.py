"""Tests whether a model keeps the samples of a packed row apart, or the branches of a tree. ::

    check_separation(model, MODEL_KEYS, use_cache=False)  # once, before training, as the loop will call the model

Models may mix samples without an error: by attention that ignores the borders, a KV cache, or recurrent layers whose
kernels are missing. The loss is then wrong, and nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from packer_cli.errors import ConfigError
from packer_cli.loader.formats.tree import kernel_keys, row_mask, two_branches

_LENGTH = 12
"""Tokens of a sample; more than any convolution's width."""
_TOLERANCE = 1e-3
"""Relative to the greatest logit. Both rows have the same shape, so kernels round alike; leaks are far greater."""


def check_separation(model: nn.Module, keys: Collection[str], **kwargs: Any) -> None:
    """Raise ConfigError if a sample changes the model's predictions in the next one.

    Runs two rows of two samples that differ only in the first sample: the second one's logits must be the same.

    Args:
        model: a causal language model of transformers, on its device, wrapped or not; with FSDP, on every rank.
        keys: the keys of a batch of format "transformers" that the loop passes to the model.
        kwargs: its other arguments, such as ``use_cache=False``.

    Price: two forwards of 24 tokens, without gradients. Does not change random states.
    """
    device = next(model.parameters()).device
    second, *firsts = _made_up(model, 3 * _LENGTH).split(_LENGTH)
    borders = torch.tensor([0, _LENGTH, 2 * _LENGTH], dtype=torch.int32, device=device)
    row = {
        "position_ids": torch.arange(_LENGTH).repeat(2)[None].to(device),
        "seq_idx": torch.arange(2, dtype=torch.int32).repeat_interleave(_LENGTH)[None].to(device),
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": _LENGTH,
        "max_length_k": _LENGTH,
    }
    row = {key: value for key, value in row.items() if key in keys} | kwargs
    predicted = [_predict(model, torch.cat((first, second)), row)[_LENGTH:] for first in firsts]
    change = _change(*predicted)
    if not change < _TOLERANCE:
        name = type(getattr(model, "module", model)).__name__
        missing = sorted({"position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k"} - {*keys})
        remedy = f"pass it {', '.join(missing)} of the batch" if missing else "use flash attention and use_cache=False"
        raise ConfigError(
            f"{name} mixes the samples of a packed row: other tokens in one sample changed the next one's logits by "
            f"{change:.1%}; {remedy}, or do not train it on packed rows (docs/loader.md, Hybrid models)"
        )


def check_tree(model: nn.Module, keys: Collection[str], **kwargs: Any) -> None:
    """Raise ConfigError unless a model runs rows of trees (`format.trees`).

    Runs a row of a prefix and two branches three times. Other tokens in the first branch must leave the output of the
    second as it was, and other tokens in the prefix must change both. Attention that looks for samples in positions
    loses the prefix; layers with a state, such as those of hybrid models, run from one branch into the next.

    Args:
        model: a causal language model of transformers, or a decoder alone, on its device, wrapped or not; with FSDP,
            on every rank.
        keys: the keys of a batch of format "tree" or "tree-flex" that the loop passes to the model.
        kwargs: its other arguments, such as ``use_cache=False``.

    Price: three forwards of 36 tokens, without gradients. Does not change random states.
    """
    device = next(model.parameters()).device
    prefix, first, second, *others = _made_up(model, 5 * _LENGTH).split(_LENGTH)
    trees = two_branches(_LENGTH, _LENGTH, _LENGTH)
    positions = torch.from_numpy(trees.positions())[None]
    row = {
        "position_ids": positions,
        "attention_mask": row_mask(trees),
        **kernel_keys(trees, trees.paths(trees.leaves())),
    }
    row = {key: value.to(device) if hasattr(value, "to") else value for key, value in row.items() if key in keys}
    row |= kwargs
    rows = (prefix, first, second), (prefix, others[0], second), (others[1], first, second)
    plain, branch, root = (_predict(model, torch.cat(ids), row).split(_LENGTH) for ids in rows)
    change = _change(plain[2], branch[2])
    lost = [name for name, at in (("first", 1), ("second", 2)) if not _change(plain[at], root[at]) > _TOLERANCE]
    if change < _TOLERANCE and not lost:
        return
    what = f"other tokens in one branch changed the next one's output by {change:.1%}"
    if lost:
        what = f"other tokens in the prefix did not change the output of the {lost[0]} branch"
    raise ConfigError(
        f"{type(getattr(model, 'module', model)).__name__} does not run trees: {what}; call set_tree_attention(model) "
        "and pass it what tree_inputs(batch, device) gives, or pack with --no-share-prefixes"
    )


def _made_up(model: nn.Module, num_tokens: int) -> torch.Tensor:
    config: Any = getattr(model, "module", model).config
    vocabulary: int = config.get_text_config().vocab_size
    return torch.arange(num_tokens) * 7919 % vocabulary


def _predict(model: nn.Module, ids: torch.Tensor, row: Mapping[str, Any]) -> torch.Tensor:
    """float64 [tokens, ...]: the logits of a row, or hidden states, with the same dropout in each call."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    with (
        torch.no_grad(),
        torch.random.fork_rng([device] if on_gpu else []),
        torch.autocast(device.type, torch.bfloat16, enabled=on_gpu),
    ):
        torch.manual_seed(0)
        found: torch.Tensor = model(input_ids=ids[None].to(device), **row)[0][0].double()
    return found


def _change(before: torch.Tensor, after: torch.Tensor) -> float:
    """Relative to the greatest logit."""
    return float((before - after).abs().max() / before.abs().max())
