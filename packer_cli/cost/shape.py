"""The shape of a decoder, from which its time and memory follow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

Dtype = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder of equal layers: attention and a feed-forward network (FFN), which may be experts (MoE).

    Raises:
        ValueError: a number is out of range; the message names the field.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key-value heads; fewer than `num_heads` is grouped-query attention (GQA)."""
    head_dim: int
    """Size of a head's queries and keys."""
    value_head_dim: int = 0
    """Size of a head's values; 0: same as `head_dim`."""
    ffn_size: int
    """Inner width of the FFN of a layer without experts."""
    gated: bool = True
    """Whether the FFN is gated (SwiGLU, GeGLU: three matrices) or plain (two)."""
    vocabulary_size: int
    tied_embeddings: bool = False
    """Whether the output layer is the embedding matrix."""
    num_experts: int = 0
    """Routed experts of an MoE layer; 0: no experts."""
    experts_per_token: int = 0
    """Routed experts that a token runs through."""
    expert_ffn_size: int = 0
    """Inner width of one expert."""
    shared_ffn_size: int = 0
    """Total inner width of a layer's shared experts."""
    num_dense_layers: int = 0
    """Layers without experts in an MoE model."""
    q_lora_rank: int = 0
    """Rank of the queries' factors in multi-head latent attention (MLA); 0: no factors."""
    kv_lora_rank: int = 0
    """Rank of keys and values in MLA; 0: no MLA."""
    rope_head_dim: int = 0
    """The part of `head_dim` that MLA rotates; all heads share its keys."""
    dtype: Dtype = "bfloat16"
    """Number type of the computation."""

    def __post_init__(self) -> None:
        """Check that the numbers are in range and consistent."""
        may_be_zero = {field.name for field in fields(self) if field.default == 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < (field.name not in may_be_zero)):
                least = 0 if field.name in may_be_zero else 1
                raise ValueError(f"{field.name} must be an integer of at least {least}, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads, {self.num_heads}, must be a multiple of num_kv_heads, {self.num_kv_heads}")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {self.dtype!r}")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token must be from 1 to num_experts, {self.num_experts}, got {self.experts_per_token}"
            )
        if self.num_experts and not self.expert_ffn_size:
            raise ValueError("expert_ffn_size must be at least 1 where there are experts")
        if self.num_dense_layers > self.num_layers:
            raise ValueError(
                f"num_dense_layers must be at most num_layers, {self.num_layers}, got {self.num_dense_layers}"
            )

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def query_size(self) -> int:
        """Numbers in a token's queries."""
        return self.num_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Numbers in a token's attention output, before its projection."""
        return self.num_heads * (self.value_head_dim or self.head_dim)

    @property
    def kv_size(self) -> int:
        """Numbers in a token's keys and values together."""
        return self.num_kv_heads * (self.head_dim + (self.value_head_dim or self.head_dim))

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        output = self.value_size * self.hidden_size
        query = self.query_size * self.hidden_size
        if not self.kv_lora_rank:
            return query + self.kv_size * self.hidden_size + output
        if self.q_lora_rank:
            query = self.q_lora_rank * (self.hidden_size + self.query_size)
        down = self.hidden_size * (self.kv_lora_rank + self.rope_head_dim)
        up = self.kv_lora_rank * (self.kv_size - self.num_kv_heads * self.rope_head_dim)
        return query + down + up + output

    @property
    def layer_parameters(self) -> tuple[float, float]:
        """Weights of a layer, averaged over the layers: all of them, and those that one token uses."""
        matrices = 3 if self.gated else 2
        per_unit = matrices * self.hidden_size
        moe = self.num_moe_layers / self.num_layers
        dense = (1 - moe) * self.ffn_size
        router = self.hidden_size * self.num_experts
        widths = (self.num_experts * self.expert_ffn_size, self.experts_per_token * self.expert_ffn_size)
        total, active = (
            self.attention_parameters + per_unit * dense + moe * (per_unit * (width + self.shared_ffn_size) + router)
            for width in widths
        )
        return total, active

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding and the output layer; counted once if they are tied."""
        return self.vocabulary_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def num_parameters(self) -> float:
        """All weights except norms and biases, which are about a thousandth."""
        return self.num_layers * self.layer_parameters[0] + self.embedding_parameters

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a number of the computation."""
        return DTYPE_BYTES[self.dtype]

    def sp_sizes(self, num_gpus: int) -> tuple[int, ...]:
        """The SP degrees, increasing, into which replicas can divide `num_gpus` GPUs: `head_degrees` that divide it.

        >>> shape = ModelShape(num_layers=1, hidden_size=48, num_heads=12, num_kv_heads=4, head_dim=4, ffn_size=8,
        ...                    vocabulary_size=8)
        >>> shape.sp_sizes(24)
        (1, 2, 4, 12)
        """
        return tuple(degree for degree in self.head_degrees(num_gpus) if num_gpus % degree == 0)

    def head_degrees(self, num_gpus: int) -> tuple[int, ...]:
        """The SP degrees, increasing, up to `num_gpus`, that Ulysses allows.

        A degree divides the query heads. It divides the key-value heads too, or is a multiple of them (then they are
        copied).
        """
        return tuple(
            degree
            for degree in range(1, min(self.num_heads, num_gpus) + 1)
            if self.num_heads % degree == 0 and (self.num_kv_heads % degree == 0 or degree % self.num_kv_heads == 0)
        )
