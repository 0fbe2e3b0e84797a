"""The shape in a transformers `config.json`; knows the key names of common model families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer_cli.cost.shape import DTYPE_BYTES, ModelShape

_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head"),
    "ffn_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocabulary_size": ("vocab_size",),
}
"""Keys of each field, the usual one first."""

_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_selected_experts")

_PLAIN_FFN = {
    "gpt_neox", "gpt2", "gptj", "gpt_bigcode", "phi", "opt", "bloom", "falcon", "starcoder2", "nemotron",
}  # fmt: skip
"""Model types whose FFN is not gated; phi3 and later ones have a gated FFN."""

_TIED = ("gemma", "gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "cohere", "starcoder2")
"""Prefixes of model types whose embeddings are tied if the config does not say."""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a config; for a model with several parts, the shape in its `text_config`.

    Raises:
        ValueError: a key is missing or wrong.
    """
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config = {**{key: config[key] for key in ("tie_word_embeddings", "dtype", "torch_dtype") if key in config},
                  **inner}  # fmt: skip
    values: dict[str, Any] = {field: _number(config, keys) for field, keys in _NAMES.items() if field != "ffn_size"}
    experts = _experts(config, values["num_layers"])
    values["ffn_size"] = _ffn_size(config, values["hidden_size"])
    return ModelShape(**values, **_attention(config, values), **experts, **_rest(config))


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
    """DeepSeek: the first, and all but every `moe_layer_freq`-th; Qwen: the same by other names."""
    first = _number(config, ("first_k_dense_replace",), 0)
    every = _number(config, ("moe_layer_freq",), 1)
    sparse_step = _number(config, ("decoder_sparse_step",), 1)
    named = config.get("mlp_only_layers") or []
    if min(every, sparse_step) < 1:
        raise ValueError("moe_layer_freq and decoder_sparse_step must be at least 1")
    if not isinstance(named, list):
        raise ValueError(f"mlp_only_layers must be a list of layers, got {named!r}")
    return sum(i < first or i % every > 0 or (i + 1) % sparse_step > 0 or i in named for i in range(num_layers))


def _ffn_size(config: Mapping[str, Any], hidden_size: int) -> int:
    """The FFN's inner width. GPT-2 and similar models omit it: it is four times the hidden size."""
    default = 4 * hidden_size if _type(config) in _PLAIN_FFN else None
    return _number(config, _NAMES["ffn_size"], default)


def _rest(config: Mapping[str, Any]) -> dict[str, Any]:
    tied = config.get("tie_word_embeddings")
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return {
        "gated": _type(config) not in _PLAIN_FFN,
        "tied_embeddings": _type(config).startswith(_TIED) if tied is None else bool(tied),
        # Weights stored in another type (float8) are computed in bfloat16.
        "dtype": dtype if dtype in DTYPE_BYTES else "bfloat16",
    }


def _type(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type", ""))


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
