"""A model that mixes the samples of a row is refused before it trains."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from packer_cli.errors import ConfigError
from packer_cli.loader.separation import check_separation
from tests.loader.kernels import modeling
from tests.loader.llama import tiny_llama
from tests.loader.test_formats_hybrids import BAMBA, COMMON

KEYS = ("input_ids", "position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def test_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama("sdpa")
    before = torch.get_rng_state()
    check_separation(model, KEYS, use_cache=False)
    check_separation(torch.nn.DataParallel(model), KEYS, use_cache=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    # With a cache SDPA does not look at position_ids.
    with pytest.raises(ConfigError, match=r"^LlamaForCausalLM mixes .* use flash attention and use_cache=False, or"):
        check_separation(model, KEYS, use_cache=True)
    with pytest.raises(ConfigError, match="pass it cu_seq_lens_k, cu_seq_lens_q, position_ids, seq_idx of the batch"):
        check_separation(model, ["input_ids"], use_cache=False)


def test_dropout_is_no_change() -> None:
    model = tiny_llama("sdpa")
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    check_separation(model, KEYS, use_cache=False)


def test_a_hybrid_without_the_numbers() -> None:
    with modeling("bamba", True) as module:
        model = module.BambaForCausalLM(transformers.BambaConfig(**COMMON, **BAMBA)).train()
    check_separation(model, KEYS, use_cache=False)
    with pytest.raises(ConfigError) as error:
        check_separation(model, set(KEYS) - {"seq_idx"}, use_cache=False)
    begin, end = str(error.value).split(" by ")
    assert begin == (
        "BambaForCausalLM mixes the samples of a packed row: other tokens in one sample changed the next one's logits"
    )
    assert end.partition("; ")[2] == (
        "pass it seq_idx of the batch, or do not train it on packed rows (docs/loader.md, Hybrid models)"
    )


def test_a_hybrid_that_no_key_helps() -> None:
    """Its layers of transformers take no borders at all; should they once do, the docs can say so."""
    options: Any = {"num_hidden_layers": 2, "num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
    model = transformers.JambaForCausalLM(transformers.JambaConfig(**COMMON, **options, mamba_d_state=8)).train()
    with pytest.raises(ConfigError) as error:
        check_separation(model, KEYS, use_cache=False)
    assert re.sub(r"\d+\.\d%", "N%", str(error.value)) == (
        "JambaForCausalLM mixes the samples of a packed row: other tokens in one sample changed the next one's logits "
        "by N%; use flash attention and use_cache=False, or do not train it on packed rows (docs/loader.md, Hybrid "
        "models)"
    )
