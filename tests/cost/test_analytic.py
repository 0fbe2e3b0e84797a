"""The analytic model: by hand on one shape, monotone on all, and beside what torch really keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.cost.analytic import (
    PRESETS,
    Assumptions,
    Gpu,
    activation_bytes,
    analytic_model,
    ulysses_bytes,
)
from packer_cli.cost.shape import ModelShape, shape_of
from packer_cli.cost.stages import WHOLE
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from tests.cost.test_shape import DEEPSEEK, LLAMA, MIXTRAL

K = 1024
SHAPE = shape_of(LLAMA)
H100 = PRESETS["h100"]


def test_a_llama_by_hand():
    model = analytic_model(SHAPE, H100, 32)
    layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    weights = 32 * layer + 2 * 128256 * 4096
    cost, memory = model.cost, model.memory
    assert cost.linear == pytest.approx(6 * (32 * layer + 128256 * 4096) / (989e12 * 0.5))
    # 4 s^2 h a layer forward, halved by the causal mask; backward twice.
    assert cost.quadratic == pytest.approx(3 * 32 * 2 * 4096 / (989e12 * 0.4))
    # 48 GB of weights and gradients go over 8 ports of 50 GB/s a node, 0.7 of it reached, half of it hidden.
    assert cost.constant == pytest.approx(6 * weights * 31 / 32 / (400e9 * 0.7) / 2)
    # Four all-to-alls forward and four backward; on two GPUs half of a half goes away.
    assert cost.send[2] == pytest.approx(32 * 2 * 2 * (4096 + 2048 + 4096) / 4 / (450e9 * 0.7))
    # On 16 half of a 16th goes to the other node, over a port of 50 GB/s.
    assert cost.send[16] == pytest.approx(32 * 2 * 2 * (4096 + 2 * 2048 + 4096) / 16 / 2 / (50e9 * 0.7))
    assert cost.send_constant == pytest.approx(8 * 32 * 3e-5)
    gathered = 2 * (3 * layer + 2 * 2 * 128256 * 4096)
    assert memory.constant == pytest.approx(16 * weights / 32 + gathered)
    assert memory.limit == pytest.approx(0.9 * 80 * 2**30)
    assert (memory.per_checkpointed_token, model.sp_sizes) == (8192, (1, 2, 4, 8, 16, 32))
    norms = 2 * (8 * 4096 + 4)
    assert memory.per_layer_token == norms + 2 * (4096 + 2048 + 4096) + 4 * 32 + 8 * 14336
    assert memory.per_token == 8192 + norms / 2 + 14 * 128256
    assert model.origin["assumptions"]["gemm_efficiency"] == 0.5
    assert model.origin["num_parameters"] == weights


def test_adapters_by_hand():
    """The gradients of frozen weights are neither computed nor kept; LoRA's factors are as many as PEFT's."""
    layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    ends = 2 * 128256 * 4096
    weights = 32 * layer + ends
    factors = 16 * 32 * (2 * 8192 + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    full, lora, qlora = (
        analytic_model(SHAPE, H100, 8, Assumptions(adapter=name)) for name in ("none", "lora", "qlora")
    )
    flops = 4 * (32 * layer + 128256 * 4096) + 6 * factors
    assert lora.cost.linear == pytest.approx(flops / (989e12 * 0.5))
    assert (lora.cost.quadratic, lora.cost.recompute) == (full.cost.quadratic, 1 / 2)
    assert lora.cost.constant == pytest.approx((4 * weights + 2 * factors) * 7 / 8 / (450e9 * 0.7) / 2)
    gathered = 2 * (2 * layer + layer * factors / weights) + 2 * ends
    assert lora.memory.constant == pytest.approx((2 * weights + 16 * factors) / 8 + gathered)
    assert lora.memory.constant_of(Layout(tp=2)) == pytest.approx(weights + factors / 2 * (4 + 12 * 2 / 8))
    four_bits = 4.127 / 8 * 32 * layer + 2 * ends
    gathered = (2 * 4.127 / 8 + 2 * factors / weights) * layer + 2 * ends
    assert qlora.memory.constant == pytest.approx((four_bits + 16 * factors) / 8 + gathered)
    assert (qlora.cost.linear, qlora.memory.per_layer_token) == (lora.cost.linear, full.memory.per_layer_token)


@pytest.mark.parametrize(("kind", "rank"), [("llama", 16), ("qwen3", 8)])
def test_adapters_are_as_many_as_pefts(kind, rank):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, head_dim=16, intermediate_size=96, vocab_size=100)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear"))
    found = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert shape_of(config.to_dict()).lora_parameters(rank) == (found, found)


def test_a_token_uses_the_adapters_of_its_experts():
    mixtral = shape_of(MIXTRAL)
    of_expert = 32 * 16 * 3 * (4096 + 14336)
    total, active = mixtral.lora_parameters(16)
    assert total - active == pytest.approx(6 * of_expert)
    assert active == pytest.approx(2 * of_expert + 16 * 32 * (4 * 4096 + 4096 + 2 * 1024 + 4096))


def test_experts_and_latent_attention():
    """Compute takes the experts that run, memory all of them; MLA's heads are expanded for all-to-alls."""
    mixtral = shape_of(MIXTRAL)
    dense = replace(mixtral, num_experts=0, experts_per_token=0, expert_ffn_size=0, ffn_size=2 * 14336)
    moe, other = analytic_model(mixtral, H100, 64), analytic_model(dense, H100, 64)
    assert moe.cost.linear == pytest.approx(other.cost.linear, rel=1e-3)  # The router.
    assert moe.memory.constant > 2 * other.memory.constant
    assert activation_bytes(mixtral) == pytest.approx(activation_bytes(dense) + 2 * 2 * 4096 * 2)
    deepseek = shape_of(DEEPSEEK)
    assert ulysses_bytes(deepseek, 8) == 4 * 128 * (192 + 192 + 128 + 128)
    assert analytic_model(deepseek, PRESETS["b200"], 2048).memory.least_checkpoint_layers(4 * K) is not None


def test_one_gpu_neither_gathers_nor_sends():
    small = replace(SHAPE, num_layers=2)
    model = analytic_model(small, H100, 1)
    assert (model.cost.constant, dict(model.cost.send), model.sp_sizes) == (0.0, {}, (1,))
    assert model.memory.constant == 16 * small.num_parameters


def test_fewer_gpus_that_share_the_weights_hold_more_of_them():
    whole, shards = analytic_model(SHAPE, H100, 64), analytic_model(SHAPE, H100, 64, shard_gpus=8)
    of_eight = analytic_model(SHAPE, H100, 8)
    assert (shards.num_gpus, shards.shard_gpus, whole.shard_gpus) == (64, 8, None)
    assert shards.memory.constant == of_eight.memory.constant > whole.memory.constant
    assert shards.cost.constant == of_eight.cost.constant < whole.cost.constant
    assert (shards.sp_sizes, shards.cost.send) == (whole.sp_sizes, whole.cost.send)
    assert (whole.sync_seconds(Layout()), of_eight.sync_seconds(Layout())) == (0.0, 0.0)
    # Seven of eight parts of an eighth of the weights, over a port of its own: bfloat16 and float32, half hidden.
    expected = 6 * SHAPE.num_parameters / 8 * 7 / 8 / (50e9 * 0.7) / 2
    assert shards.sync_seconds(Layout()) == pytest.approx(expected)
    alone, alike = (each.of_lockstep("1") for each in (shards, whole))
    assert alone.memory.constant_of(Layout()) == alike.memory.constant_of(Layout())
    assert alone.sync_seconds(Layout()) == alike.sync_seconds(Layout())
    assert alone.cost.model_parallel == alike.cost.model_parallel


def test_a_chunked_loss_takes_no_logits():
    chunked = analytic_model(SHAPE, H100, 32, Assumptions(logits="chunked")).memory
    whole = analytic_model(SHAPE, H100, 32).memory
    assert whole.per_token - chunked.per_token == 14 * 128256 - chunked.per_layer_token
    assert chunked.longest(Layout(sp=8)) > 1.5 * whole.longest(Layout(sp=8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: analytic_model(SHAPE, H100, 1),
            (
                "the model's share of 1 GPU takes 128.5 GB and a GPU has 77.3 GB for training: let more GPUs share "
                "it, or give GPUs with more memory"
            ),
        ),
        (lambda: Assumptions(gemm_efficiency=0), "gemm_efficiency must be above 0 and at most 1, got 0"),
        (lambda: Assumptions(memory_reserve=1), "memory_reserve must be from 0 to below 1, got 1"),
        (lambda: Assumptions(exposed_gather=-1), "exposed_gather must be from 0 to 1, got -1"),
        (lambda: Assumptions(exposed_rows=2), "exposed_rows must be from 0 to 1, got 2"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value) == message


shapes = st.builds(
    lambda heads, kv, **rest: ModelShape(num_heads=heads * kv, num_kv_heads=kv, **rest),
    heads=st.sampled_from([1, 2, 4, 8]), kv=st.sampled_from([1, 2, 4, 8]), num_layers=st.integers(1, 80),
    hidden_size=st.integers(64, 8192), head_dim=st.sampled_from([32, 64, 128]), ffn_size=st.integers(64, 30000),
    vocabulary_size=st.integers(1000, 300000), gated=st.booleans(), tied_embeddings=st.booleans(),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)  # fmt: skip
gpus = st.builds(
    Gpu, name=st.just("x"), flops=st.floats(1e13, 1e16), memory_bytes=st.floats(1e10, 1e12),
    node_bandwidth=st.floats(1e9, 1e12), network_bandwidth=st.floats(1e8, 1e12),
    gpus_per_node=st.sampled_from([1, 4, 8, 72]),
)  # fmt: skip
BETTER = ("flops", "memory_bytes", "node_bandwidth", "network_bandwidth")


@given(shape=shapes, gpu=gpus, num_gpus=st.sampled_from([1, 8, 32, 64]), key=st.sampled_from(BETTER),
       factor=st.floats(1, 8), length=st.integers(16, 2**20), data=st.data())  # fmt: skip
def test_a_better_gpu_or_shorter_data_never_costs_more(shape, gpu, num_gpus, key, factor, length, data):
    try:
        worse = analytic_model(shape, gpu, num_gpus)
    except ConfigError:
        return  # The weights alone do not fit.
    better = analytic_model(shape, replace(gpu, **{key: getattr(gpu, key) * factor}), num_gpus)
    shorter = data.draw(st.integers(1, length))
    for degree in worse.sp_sizes:
        for layers in {0, shape.num_layers // 2, shape.num_layers}:
            seconds = float(worse.cost.seconds(length**2, length, Layout(sp=degree), layers))
            assert np.isfinite(seconds)
            assert seconds > 0
            assert float(better.cost.seconds(length**2, length, Layout(sp=degree), layers)) <= seconds * (1 + 1e-12)
            assert float(worse.cost.seconds(shorter**2, shorter, Layout(sp=degree), layers)) <= seconds
            assert worse.memory.bytes(shorter, Layout(sp=degree), layers) <= worse.memory.bytes(
                length, Layout(sp=degree), layers
            )
        layers = worse.memory.least_checkpoint_layers(length, Layout(sp=degree))
        if layers is not None:
            for model, tokens in ((better, length), (worse, shorter)):
                found = model.memory.least_checkpoint_layers(tokens, Layout(sp=degree))
                assert found is not None
                assert found <= layers
            assert worse.memory.bytes(length, Layout(sp=degree), layers) <= worse.memory.limit * (1 + 1e-9)
        assert better.memory.longest(Layout(sp=degree)) >= worse.memory.longest(Layout(sp=degree))


def test_a_peer_outside_the_node_costs_more_than_one_inside():
    send = analytic_model(SHAPE, H100, 16).cost.send
    assert send[16] > send[8]
    assert analytic_model(SHAPE, replace(H100, gpus_per_node=16), 16).cost.send[16] < send[8]


PAPER = [  # Table 4 of HBP: length, SP degree, checkpointed layers, seconds.
    (32, 2, 28, 4.45), (32, 4, 23, 4.35), (32, 8, 8, 4.12), (64, 4, 28, 6.3), (64, 8, 24, 6.2), (128, 8, 29, 10.2),
    (128, 16, 23, 10.5),
]  # fmt: skip


def test_what_ran_out_of_memory_in_the_paper_does_so_here():
    """Tables 4 and 18: these and no others."""
    memory = analytic_model(SHAPE, H100, 32).memory
    for length, sp in ((64, 2), (128, 4), (32, 1)):
        assert memory.least_checkpoint_layers(length * K, Layout(sp=sp)) is None
    for length, sp, *_ in [*PAPER, (32, 16), (8, 2), (16, 1)]:
        assert memory.least_checkpoint_layers(length * K, Layout(sp=sp)) is not None


def test_the_papers_relative_times():
    """Of one sample a row, at the same tokens; each beside the first. docs/profile.md has the table."""
    cost = analytic_model(SHAPE, H100, 32).cost

    def seconds(length, sp, layers):
        return float(cost.seconds((length * K) ** 2, length * K, Layout(sp=sp), layers)) * sp / length

    for length, sp, layers, wanted in PAPER:
        found = seconds(length, sp, layers) / seconds(*PAPER[0][:3])
        assert found == pytest.approx(wanted / PAPER[0][3], rel=0.05), (length, sp)


@pytest.mark.parametrize(
    # The norms of torch itself keep other types than transformers' in bfloat16.
    ("modelling", "dtype", "exactly"),
    [("transformers", "bfloat16", 0), ("transformers", "float32", 0), ("plain", "bfloat16", 0.1)],
)
def test_the_formula_is_what_torch_keeps(tmp_path, modelling, dtype, exactly):
    """The growth of the counted peak with tokens, for no and all layers checkpointed."""
    torch = pytest.importorskip("torch")
    import json

    from packer_cli.measure.device import Device
    from packer_cli.measure.kernels import RowAttention
    from packer_cli.measure.subject import Subject

    def in_one_call(query, key, value, segments):
        """As other kernels than SDPA, whose outputs, joined, are kept twice."""
        parts = (x.transpose(0, 1)[None] for x in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return output[0].transpose(0, 1)

    tiny = {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 8, "num_key_value_heads": 4,
            "num_hidden_layers": 4, "vocab_size": 500, "torch_dtype": dtype}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | tiny))
    shape = shape_of(LLAMA | tiny)
    device = Device("cpu")
    subject = Subject(tmp_path, shape, modelling, RowAttention(in_one_call), torch.device("cpu"))
    subject.run((16,), 0)

    def growth(layers):
        peaks = [device.peak_bytes(lambda t=t: subject.run((t,), layers), subject.held_bytes) for t in (256, 512)]
        return (peaks[1] - peaks[0]) / 256

    memory = analytic_model(shape, H100, 1).memory
    a_layer = memory.per_layer_token - memory.per_checkpointed_token
    assert (growth(0) - growth(2)) / 2 == pytest.approx(a_layer, rel=exactly)
    # High where float32 logits are not copied, and where nobody holds the logits in their own type until backward.
    whole = memory.per_token + 4 * memory.per_checkpointed_token
    assert growth(4) == pytest.approx(whole, rel=0.05 if (modelling, dtype) == ("transformers", "bfloat16") else 0.15)


def test_hidden_transfers_of_shared_rows_cost_nothing():
    """Of SP and CP alone; TP and pipelines keep theirs."""
    shape = ModelShape(
        num_layers=4, hidden_size=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_size=2048, vocabulary_size=1000
    )  # fmt: skip
    whole, half, none = (
        analytic_model(shape, H100, 16, Assumptions(exposed_rows=share, collective_latency=0)).cost
        for share in (1.0, 0.5, 0.0)
    )
    for layout in (Layout(sp=8), Layout(cp=8), Layout(sp=4, tp=2)):
        sent = [float(each.communication(1000, layout, 0, WHOLE)) for each in (whole, half, none)]
        of_others = float(whole.communication(1000, Layout(tp=layout.tp), 0, WHOLE)) / layout.row_ranks
        assert sent[0] - sent[1] == pytest.approx(sent[1] - sent[2])
        assert sent[0] > sent[2]
        assert sent[2] == pytest.approx(of_others if layout.tp > 1 else 0.0)
