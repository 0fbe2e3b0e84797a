"""A tiny Llama of transformers in float64, and what a pack must give: the losses of its samples one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from packer_cli.loader.losses import token_losses

VOCABULARY = 1000


def tiny_llama(attention: str = "sdpa", seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.3,  # far from uniform, so that a wrong mask shows
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(dtype).train()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LlamaRMSNorm):  # which computes in float32, whatever it is given
                setattr(module, name, torch.nn.RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype))
    # Set on the config: an unregistered name is refused by the constructor.
    model.config._attn_implementation = attention
    return model


def with_rewards(model: Any) -> Any:
    """A model that gives rewards, with the same decoder."""
    torch.manual_seed(1)
    model.config.num_labels, model.config.pad_token_id = 1, None
    found = LlamaForSequenceClassification(model.config).double().train()
    found.model = model.model
    return found


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def sample_losses(model: Any, samples: Iterable[Any]) -> list[torch.Tensor]:
    """The losses at the predicting tokens, sample after sample; backward was called on their sum."""
    losses = []
    for sample in samples:
        ids = torch.tensor([sample.tokens])
        labels = [t if m else -100 for t, m in zip(sample.tokens, sample.mask, strict=True)]
        logits = model(input_ids=ids).logits
        found = token_losses(logits, torch.tensor([*labels[1:], -100]))
        found.sum().backward()
        losses.append(found.detach())
    return losses


def closeness(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The greatest difference, relative to the greatest gradient."""
    assert one.keys() == other.keys()
    assert one
    return max(float((one[n] - other[n]).abs().max() / one[n].abs().max().clamp(min=1e-9)) for n in one)
