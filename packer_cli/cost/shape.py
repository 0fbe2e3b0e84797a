"""The shape of a decoder, from which its time and memory follow, and how to read it from a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

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

    def lora_parameters(self, rank: float) -> tuple[float, float]:
        """Count the weights of LoRA's factors: all of them, and those that one token uses.

        All linear layers but the output layer have factors (arXiv 2106.09685, section 4.1).
        """
        hidden, matrices = self.hidden_size, 3 if self.gated else 2
        attention = 4 * hidden + self.query_size + self.kv_size + self.value_size
        moe = self.num_moe_layers / self.num_layers
        dense = (1 - moe) * (hidden + self.ffn_size)
        shared = (hidden + self.shared_ffn_size) * (self.shared_ffn_size > 0)
        total, active = (
            attention + matrices * (dense + moe * (shared + experts * (hidden + self.expert_ffn_size)))
            for experts in (self.num_experts, self.experts_per_token)
        )
        return rank * self.num_layers * total, rank * self.num_layers * active

    @property
    def head_layers(self) -> float:
        """Layers that a token computes as much in as in the LM head, attention's scores aside."""
        return self.vocabulary_size * self.hidden_size / self.layer_parameters[1]

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a number of the computation."""
        return DTYPE_BYTES[self.dtype]

    def sp_sizes(self, num_gpus: int) -> tuple[int, ...]:
        """List the SP degrees, rising, into which replicas can divide `num_gpus`: `head_degrees` that divide it.

        >>> shape = ModelShape(num_layers=1, hidden_size=48, num_heads=12, num_kv_heads=4, head_dim=4, ffn_size=8,
        ...                    vocabulary_size=8)
        >>> shape.sp_sizes(24)
        (1, 2, 3, 4, 6, 12)
        """
        return tuple(degree for degree in self.head_degrees(num_gpus) if num_gpus % degree == 0)

    def head_degrees(self, num_gpus: int) -> tuple[int, ...]:
        """List the SP degrees, rising, up to `num_gpus`, that Ulysses allows: those that divide the query heads.

        Key-value heads are copied to the least number that the degree divides.
        """
        return tuple(degree for degree in range(1, min(self.num_heads, num_gpus) + 1) if self.num_heads % degree == 0)


_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head"),
    "vocabulary_size": ("vocab_size",),
}
"""Keys of each field, the usual one first."""

_FFN_SIZE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_selected_experts")

_PLAIN_FFN = {
    "gpt_neox", "gpt2", "gptj", "gpt_bigcode", "phi", "opt", "bloom", "falcon", "starcoder2", "nemotron",
}  # fmt: skip
"""Model types whose FFN is not gated; phi3 and later ones have a gated FFN."""

_TIED = ("gemma", "gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "cohere", "starcoder2")
"""Prefixes of model types whose embeddings are tied if the config does not say."""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Read the shape in a config; for a model with several parts, the shape in its `text_config`.

    Raises:
        ValueError: a key is missing or wrong.
    """
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config = {**{key: config[key] for key in ("tie_word_embeddings", "dtype", "torch_dtype") if key in config},
                  **inner}  # fmt: skip
    values: dict[str, Any] = {field: _number(config, keys) for field, keys in _NAMES.items()}
    experts = _experts(config, values["num_layers"])
    kind = str(config.get("model_type", ""))
    gated = kind not in _PLAIN_FFN
    tied = config.get("tie_word_embeddings")
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return ModelShape(
        **values,
        # GPT-2 and similar models leave it out: it is four times the hidden size.
        ffn_size=_number(config, _FFN_SIZE, None if gated else 4 * values["hidden_size"]),
        **_attention(config, values),
        **experts,
        gated=gated,
        tied_embeddings=kind.startswith(_TIED) if tied is None else bool(tied),
        # Weights stored in another type (float8) are computed in bfloat16.
        dtype=dtype if dtype in DTYPE_BYTES else "bfloat16",  # type: ignore[arg-type]
    )


def _attention(config: Mapping[str, Any], values: Mapping[str, int]) -> dict[str, Any]:
    heads = values["num_heads"]
    if config.get("kv_lora_rank"):  # MLA: once expanded, keys and values have as many heads as queries.
        rope = _number(config, ("qk_rope_head_dim",))
        return {
            "num_kv_heads": heads,
            "head_dim": _number(config, ("qk_nope_head_dim",)) + rope,
            "value_head_dim": _number(config, ("v_head_dim",)),
            "q_lora_rank": _number(config, ("q_lora_rank",), 0),
            "kv_lora_rank": _number(config, ("kv_lora_rank",)),
            "rope_head_dim": rope,
        }
    if config.get("multi_query") and not config.get("new_decoder_architecture"):  # Falcon has both names.
        kv_heads = 1
    else:
        kv_heads = _number(config, ("num_key_value_heads", "num_kv_heads"), heads)
    head_dim = _number(config, ("head_dim",), 0)
    if not head_dim:
        if heads < 1 or values["hidden_size"] % heads:
            raise ValueError(
                f"hidden_size, {values['hidden_size']}, is not a multiple of num_attention_heads, {heads}, "
                "and there is no head_dim"
            )
        head_dim = values["hidden_size"] // heads
    return {"num_kv_heads": kv_heads, "head_dim": head_dim}


def _experts(config: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    num_experts = _number(config, _NUM_EXPERTS, 0)
    if num_experts < 2:
        return {}
    # Mixtral and gpt-oss have no other FFN, so `intermediate_size` is the experts'.
    size = _number(config, ("moe_intermediate_size", "intermediate_size"))
    shared = _number(config, ("shared_expert_intermediate_size",), 0)
    shared += _number(config, ("n_shared_experts",), 0) * size
    return {
        "num_experts": num_experts,
        "experts_per_token": _number(config, _EXPERTS_PER_TOKEN),
        "expert_ffn_size": size,
        "shared_ffn_size": shared,
        "num_dense_layers": _num_dense_layers(config, num_layers),
    }


def _num_dense_layers(config: Mapping[str, Any], num_layers: int) -> int:
    """Count dense layers: DeepSeek's first and all but every `moe_layer_freq`-th; Qwen's by other names."""
    first = _number(config, ("first_k_dense_replace",), 0)
    every = _number(config, ("moe_layer_freq",), 1)
    sparse_step = _number(config, ("decoder_sparse_step",), 1)
    named = config.get("mlp_only_layers") or []
    if min(every, sparse_step) < 1:
        raise ValueError("moe_layer_freq and decoder_sparse_step must be at least 1")
    if not isinstance(named, list):
        raise ValueError(f"mlp_only_layers must be a list of layers, got {named!r}")
    return sum(i < first or i % every > 0 or (i + 1) % sparse_step > 0 or i in named for i in range(num_layers))


def _number(config: Mapping[str, Any], keys: tuple[str, ...], default: int | None = None) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or value < 0:
            raise ValueError(f"{key} must be an integer, got {value!r}")
        return value
    if default is None:
        others = f" (or {', '.join(keys[1:])})" if keys[1:] else ""
        raise ValueError(f"the key {keys[0]!r}{others} is missing: the model type is not supported")
    return default
