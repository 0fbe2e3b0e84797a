"""Shapes from the configs of known models: their number of weights is the published one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from packer_cli.cost.analytic import PRESETS, parse_gpu, ulysses_bytes
from packer_cli.cost.shape import ModelShape, shape_of
from packer_cli.errors import ConfigError

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
QWEN = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3", "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
        "num_hidden_layers": 34, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    },
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
    "num_hidden_layers": 44, "vocab_size": 50432, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
MIXTRAL = MISTRAL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN_MOE = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1,
    "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True, "vocab_size": 65024,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50257}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA, 8.03, 8.03),
        (MISTRAL, 7.24, 7.24),
        (QWEN, 0.494, 0.494),
        (GEMMA, 3.88, 3.88),
        (NEOX, 20.55, 20.55),
        (MIXTRAL, 46.7, 12.9),
        (QWEN_MOE, 14.3, 2.7),
        (DEEPSEEK, 671, 37.5),
        (FALCON, 41.3, 41.3),
        (GPT2, 0.124, 0.124),
    ],
)
def test_known_models_have_the_published_number_of_weights(config, total, active):
    shape = shape_of(config)
    assert shape.num_parameters / 1e9 == pytest.approx(total, rel=0.01)
    running = shape.num_layers * shape.layer_parameters[1] + shape.embedding_parameters
    assert running / 1e9 == pytest.approx(active, rel=0.02)


def test_what_configs_leave_out():
    assert shape_of(GEMMA).tied_embeddings
    assert [shape_of(LLAMA | {"model_type": name}).gated for name in ("gpt_neox", "phi", "phi3")] == [
        False,
        False,
        True,
    ]
    assert shape_of(NEOX).num_kv_heads == 64
    assert shape_of(FALCON).num_kv_heads == 8
    assert shape_of(FALCON | {"new_decoder_architecture": False}).num_kv_heads == 1
    assert shape_of(FALCON | {"ffn_hidden_size": 4096}).ffn_size == 4096
    assert (shape_of(NEOX).dtype, shape_of(GEMMA).dtype, shape_of(QWEN).dtype) == ("float16", "bfloat16", "bfloat16")
    assert shape_of(LLAMA | {"torch_dtype": "float8_e4m3fn"}).dtype == "bfloat16"
    assert (shape_of(GPT2).tied_embeddings, shape_of(GPT2).ffn_size) == (True, 3072)
    assert shape_of(QWEN_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}).num_dense_layers == 13
    assert shape_of(DEEPSEEK).sp_sizes(256)[-1] == 128


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**LLAMA, "hidden_size": None},
            "the key 'hidden_size' (or n_embd, d_model) is missing: the model type is not supported",
        ),
        ({**LLAMA, "vocab_size": "many"}, "vocab_size must be an integer, got 'many'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
        (
            {**LLAMA, "num_attention_heads": 30},
            "hidden_size, 4096, is not a multiple of num_attention_heads",
        ),
        ({**LLAMA, "num_attention_heads": 0}, "is not a multiple of num_attention_heads, 0"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_heads, 32, must be a multiple of num_kv_heads, 5"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "must be from 1 to num_experts, 8, got 9"),
        ({**QWEN_MOE, "mlp_only_layers": 3}, "mlp_only_layers must be a list of layers, got 3"),
        ({**QWEN_MOE, "decoder_sparse_step": 0}, "decoder_sparse_step must be at least 1"),
    ],
)  # fmt: skip
def test_a_config_that_is_wrong(config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        shape_of(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 1.5}, "num_layers must be an integer of at least 1, got 1.5"),
        ({"dtype": "int8"}, "dtype must be one of bfloat16, float16, float32, got 'int8'"),
        ({"num_experts": 2, "experts_per_token": 1}, "expert_ffn_size must be at least 1 where there are experts"),
        ({"num_dense_layers": 33}, "num_dense_layers must be at most num_layers, 32, got 33"),
    ],
)
def test_a_shape_by_hand_that_is_wrong(change, message):
    with pytest.raises(ValueError) as error:
        replace(shape_of(LLAMA), **change)
    assert str(error.value) == message


def test_degrees_share_the_heads_out():
    shape = ModelShape(
        num_layers=1, hidden_size=24, num_heads=24, num_kv_heads=6, head_dim=1, ffn_size=1, vocabulary_size=1
    )
    assert shape.sp_sizes(48) == (1, 2, 3, 4, 6, 8, 12, 24)
    assert shape.sp_sizes(16) == (1, 2, 4, 8)
    sent = {degree: ulysses_bytes(shape, degree) for degree in (1, 2, 4, 8, 24)}
    assert sent == {
        degree: 4 * (24 + 2 * heads + 24) for degree, heads in ((1, 6), (2, 6), (4, 12), (8, 24), (24, 24))
    }
    assert shape_of(QWEN).sp_sizes(8) == (1, 2)


def test_presets_and_other_gpus():
    assert {gpu.name for gpu in PRESETS.values()} == {"a100", "h100", "h200", "b200"}
    assert parse_gpu("H100") == PRESETS["h100"]
    changed = parse_gpu("h100:memory=94GiB,node=4")
    assert (changed.memory_bytes, changed.gpus_per_node, changed.flops) == (94 * 2**30, 4, 989e12)
    mine = parse_gpu("mine:flops=1e15,memory=64GB,nvlink=100GB,network=1GB")
    assert (mine.name, mine.flops, mine.node_bandwidth, mine.gpus_per_node) == ("mine", 1e15, 1e11, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "h1000",
            (
                "--gpu: unknown GPU 'h1000' (did you mean 'h100'?); choose one of a100, h100, h200, b200, or say "
                "what it is: h1000:flops=989e12,memory=80GiB,nvlink=450GB,network=50GB"
            ),
        ),
        (
            "h100:speed=3",
            (
                "--gpu: 'h100:speed=3' is not NAME[:KEY=VALUE,...], such as h100 or h100:memory=94GiB; "
                "keys: flops, memory, nvlink, network, node"
            ),
        ),
        ("h100:memory=big", "--gpu: 'h100:memory=big': memory must be bytes, such as 80GiB, got 'big'"),
        ("h100:flops=nan", "--gpu: 'h100:flops=nan': flops must be a number above 0, such as 989e12, got 'nan'"),
        ("h100:node=0", "--gpu: 'h100:node=0': node must be an integer above 0, got '0'"),
    ],
)
def test_a_gpu_that_is_wrong(text, message):
    with pytest.raises(ConfigError) as error:
        parse_gpu(text)
    assert str(error.value) == message
