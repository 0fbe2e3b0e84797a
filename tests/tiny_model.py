"""What a trainer computes of its batch: a tiny Llama, its loss by segments, and that of samples one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 1024
"""Of the sample's tokenizer."""


@cache
def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,  # Far from uniform, so that a wrong mask shows.
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).double().eval()


def naive_loss(packs: Iterable[Sequence[tuple[list[int], list[int]]]]) -> float:
    """The sum of the losses of all samples, each alone. transformers computes norms and softmax in float32."""
    total = 0.0
    with torch.no_grad():
        for samples in packs:
            for ids, mask in samples:
                logits = tiny_llama()(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
                labels = torch.tensor([token if keep else -100 for token, keep in zip(ids, mask, strict=True)])[1:]
                total += float(F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"))
    return total


def block_mask(segments: torch.Tensor) -> torch.Tensor:
    """bool [1, 1, t, t]: the tokens at or before each that are of its segment.

    Args:
        segments: int [t]: the number of each token's segment.
    """
    same = segments[:, None] == segments[None]
    return (same & torch.ones_like(same).tril())[None, None]


def segments_of(cu_seqlens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """int64 [t]: the segment of each token, from where segments begin and end."""
    assert cu_seqlens[0] == 0
    assert cu_seqlens[-1] == num_tokens
    return torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff().long())


def packed_loss(
    ids: torch.Tensor, targets: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor
) -> tuple[float, int]:
    """The sum of the losses of a row, and how many tokens carry one.

    Args:
        ids, targets, position_ids: int64 [t]; targets are shifted already.
        mask: [1, 1, t, t], bool or additive.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = tiny_llama()(
            input_ids=ids[None], position_ids=position_ids[None], attention_mask=mask.double(), use_cache=False
        ).logits[0]
    loss = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return float(loss), int((targets != -100).sum())


def shift(labels: torch.Tensor) -> torch.Tensor:
    """[t]: labels as a transformers model takes them, one token earlier, as its loss makes them."""
    return F.pad(labels[1:], (0, 1), value=-100)
