"""A decoder in plain torch, to measure without transformers' modelling code."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class PlainLayer(nn.Module):
    """RMSNorm, attention with rotary positions, RMSNorm, FFN."""

    gradient_checkpointing = False
    """Set by `LayerCheckpointing`, which also sets `_gradient_checkpointing_func`."""

    def __init__(self, shape: ModelShape, attention: Attention) -> None:
        super().__init__()
        hidden, key_size = shape.hidden_size, shape.num_kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.attend = attention
        self.attention_norm = nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, shape.query_size, bias=False)
        self.key = nn.Linear(hidden, key_size, bias=False)
        self.value = nn.Linear(hidden, key_size, bias=False)
        self.output = nn.Linear(shape.query_size, hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, shape.ffn_size, bias=False) if shape.gated else None
        self.up = nn.Linear(hidden, shape.ffn_size, bias=False)
        self.down = nn.Linear(shape.ffn_size, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[t, hidden] -> [t, hidden]; cos and sin are [t, 1, head_dim]."""
        normed = self.attention_norm(x)
        query, key, value = (
            linear(normed).unflatten(-1, (-1, self.head_dim)) for linear in (self.query, self.key, self.value)
        )
        query, key = (heads * cos + _turned(heads) * sin for heads in (query, key))
        x = x + self.output(self.attend(query, key, value).flatten(-2))
        normed = self.ffn_norm(x)
        inner = self.up(normed)
        inner = F.gelu(inner) if self.gate is None else F.silu(self.gate(normed)) * inner
        return x + self.down(inner)


class PlainDecoder(nn.Module):
    """Embedding, layers, norm, output layer, and the loss.

    Args:
        chunk: tokens whose logits exist at once, and are recomputed in backward; 0: all tokens, without recomputing.

    Raises:
        ConfigError: the shape has experts, latent attention, or heads of an odd size.
    """

    def __init__(self, shape: ModelShape, attention: Attention, chunk: int = 0) -> None:
        super().__init__()
        self.chunk = chunk
        if shape.num_experts or shape.kv_lora_rank:
            kind = "experts" if shape.num_experts else "latent attention"
            raise ConfigError(f"--modelling plain has no {kind}: measure this model with --modelling transformers")
        if shape.head_dim % 2:
            raise ConfigError(
                f"--modelling plain needs heads of an even size, got {shape.head_dim}: measure this model with "
                "--modelling transformers"
            )
        self.head_dim = shape.head_dim
        self.embedding = nn.Embedding(shape.vocabulary_size, shape.hidden_size)
        self.layers = nn.ModuleList(PlainLayer(shape, attention) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size)
        self.head = nn.Linear(shape.hidden_size, shape.vocabulary_size, bias=False)
        if shape.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss; the arguments are int64 [t]."""
        x = self.embedding(ids)
        rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2, device=ids.device) / self.head_dim)
        angles = (positions[:, None] * rates).repeat(1, 2)[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            if layer.gradient_checkpointing and self.training:
                x = layer._gradient_checkpointing_func(layer, x, cos, sin)
            else:
                x = layer(x, cos, sin)
        x = self.norm(x)
        if not self.chunk:
            return self._loss(x, labels) / len(labels)
        chunks = zip(x.split(self.chunk), labels.split(self.chunk), strict=True)
        losses = [checkpoint(self._loss, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.stack(losses).sum() / len(labels)

    def _loss(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x).float(), labels, reduction="sum")


def _turned(heads: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
