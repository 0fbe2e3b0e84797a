"""The model to measure: forward and backward on a packed row, with any number of checkpointed layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from packer_cli.cost.analytic import LOGITS_CHUNK
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.loader.layer_checkpointing import LayerCheckpointing
from packer_cli.measure.kernels import RowAttention

_ATTENTION = "hbpack_profile"
"""The name of hbpack's attention in transformers."""


class Subject:
    """Runs iterations. Each process creates the whole model, with random weights.

    Args:
        shard: whether processes share the weights (FSDP2): each then keeps only its part.

    Raises:
        ConfigError: transformers cannot create the model, checkpoint its layers, or chunk its logits.
    """

    def __init__(
        self,
        path: Path,
        shape: ModelShape,
        modelling: str,
        attention: RowAttention,
        device: torch.device,
        *,
        chunked_logits: bool = False,
        shard: bool = True,
    ) -> None:
        self.device = device
        self._vocabulary_size = shape.vocabulary_size
        self._is_plain = modelling == "plain"
        self._attention = attention
        torch.manual_seed(0)
        if self._is_plain:
            with device:
                model: Any = PlainDecoder(shape, attention, LOGITS_CHUNK if chunked_logits else 0)
            model = model.to(getattr(torch, shape.dtype))
        elif chunked_logits:
            raise ConfigError("--logits chunked needs --modelling plain: transformers computes all logits at once")
        else:
            model = _transformers(path, shape, attention, device)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        try:
            self._checkpointing = LayerCheckpointing(model, model.layers if self._is_plain else None)
        except ValueError as error:
            raise ConfigError(f"--model {str(path)!r}: {error}") from None
        if len(self._checkpointing.layers) != shape.num_layers:
            raise ConfigError(
                f"--model {str(path)!r}: the config has {shape.num_layers} layers, but the model has "
                f"{len(self._checkpointing.layers)}; give another config, or --modelling plain"
            )
        if shard and dist.is_initialized() and dist.get_world_size() > 1:
            from torch.distributed.fsdp import fully_shard

            for layer in self._checkpointing.layers:
                fully_shard(layer)
            fully_shard(model)
        self.model = model.train()

    @property
    def held_bytes(self) -> int:
        """Bytes of weights and gradients that this process holds."""
        held = 0
        for parameter in self.model.parameters():
            for tensor in (parameter, parameter.grad):
                if tensor is not None:
                    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                    held += local.numel() * local.element_size()
        return held

    def run(self, samples: tuple[int, ...], checkpoint_layers: int, group: dist.ProcessGroup | None = None) -> None:
        """Run `run_row` on a row of made-up tokens.

        Args:
            samples: lengths of the row's samples; their sum is a multiple of the number of processes in the group.
        """
        length = sum(samples)
        sp_size = 1 if group is None else dist.get_world_size(group)
        begin = 0 if group is None else dist.get_rank(group) * (length // sp_size)
        mine = slice(begin, begin + length // sp_size)
        positions = torch.cat([torch.arange(size) for size in samples])[mine].to(self.device)
        ids = torch.arange(mine.start, mine.stop, device=self.device) * 7919 % self._vocabulary_size
        self.run_row(ids, positions, ids, samples, checkpoint_layers, group)

    def run_row(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        labels: torch.Tensor,
        samples: tuple[int, ...],
        checkpoint_layers: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Run forward and backward on one row; gradients accumulate, as in a step of several iterations.

        Args:
            ids, positions, labels: int64 [t], this process's part of the row, contiguous; labels are not shifted.
            samples: lengths of the whole row's samples.
            group: the processes that share the row.
        """
        self._attention.set(samples, group, self.device)
        self._checkpointing.set(checkpoint_layers)
        if self._is_plain:
            loss = self.model(ids, positions, labels)
        else:
            logits = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
            loss = F.cross_entropy(logits.float(), labels)
        loss.backward()


def _transformers(path: Path, shape: ModelShape, attention: RowAttention, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def function(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        """Attend: [1, heads, t, dim] -> [1, t, heads, dim]."""
        return attention(*(x[0].transpose(0, 1) for x in (query, key, value)))[None], None

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, function)
    try:
        values = json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
        config = AutoConfig.for_model(**values).get_text_config()
        with torch.device(device):
            # Never run code that comes with a model.
            model = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, shape.dtype), trust_remote_code=False
            )
    except (ImportError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--model {str(path)!r}: transformers cannot create this model ({' '.join(str(error).split())}); "
            "give another config, or --modelling plain"
        ) from None
    # Set it on the config: the constructor refuses names that it does not know.
    model.config._attn_implementation = _ATTENTION
    return model


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
        """Run the layer: [t, hidden] -> [t, hidden]; cos and sin are [t, 1, head_dim]."""
        normed = self.attention_norm(x)
        query, key, value = (
            linear(normed).unflatten(-1, (-1, self.head_dim)) for linear in (self.query, self.key, self.value)
        )
        query, key = (heads * cos + _turned(heads) * sin for heads in (query, key))
        x = x + self.output(self.attend(query, key, value).flatten(-2))
        normed = self.ffn_norm(x)
        inner = self.up(normed)
        inner = F.gelu(inner) if self.gate is None else F.silu(self.gate(normed)) * inner
        found: torch.Tensor = x + self.down(inner)
        return found


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
        """Compute the mean loss; the arguments are int64 [t]."""
        x = self.embedding(ids)
        rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2, device=ids.device) / self.head_dim)
        angles = (positions[:, None] * rates).repeat(1, 2)[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        layer: Any
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
