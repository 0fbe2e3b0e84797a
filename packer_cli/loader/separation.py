"""Tests whether a model keeps the samples of a packed row apart. ::

    check_separation(model, MODEL_KEYS, use_cache=False)  # once, before training, as the loop will call the model

Models may mix samples without an error: by attention that ignores the borders, a KV cache, or recurrent layers whose
kernels are missing. The loss is then wrong, and nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from packer_cli.errors import ConfigError

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
    config: Any = getattr(model, "module", model).config
    device = next(model.parameters()).device
    ids = torch.arange(3 * _LENGTH) * 7919 % config.get_text_config().vocab_size
    second, *firsts = ids.split(_LENGTH)
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
    on_gpu = device.type == "cuda"
    predicted = []
    for first in firsts:
        # The same dropout in both.
        with (
            torch.no_grad(),
            torch.random.fork_rng([device] if on_gpu else []),
            torch.autocast(device.type, torch.bfloat16, enabled=on_gpu),
        ):
            torch.manual_seed(0)
            inputs = torch.cat((first, second))[None].to(device)
            predicted.append(model(input_ids=inputs, **row).logits[0, _LENGTH:].double())
    change = float((predicted[0] - predicted[1]).abs().max() / predicted[0].abs().max())
    if not change < _TOLERANCE:
        name = type(getattr(model, "module", model)).__name__
        missing = sorted({"position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k"} - {*keys})
        remedy = f"pass it {', '.join(missing)} of the batch" if missing else "use flash attention and use_cache=False"
        raise ConfigError(
            f"{name} mixes the samples of a packed row: other tokens in one sample changed the next one's logits by "
            f"{change:.1%}; {remedy}, or do not train it on packed rows (docs/loader.md, Hybrid models)"
        )
