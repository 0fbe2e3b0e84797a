"""Time and memory with tensor, context and pipeline parallelism, by hand and in general."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.cost.analytic import PRESETS, analytic_model
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.format.layout import ONE_GPU, Layout

K = 1024
LLAMA = ModelShape(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14336, vocabulary_size=128256
)
H100 = PRESETS["h100"]
MODEL = analytic_model(LLAMA, H100, 64)
layouts = st.builds(
    Layout,
    sp=st.just(1),
    cp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2]),
)


def slowest(seconds, layout, cost):
    return max(float(seconds(stage)) for stage in cost.stages(layout))


def computing(work, tokens, layout=ONE_GPU, layers=0, cost=MODEL.cost):
    return slowest(lambda stage: cost.computing(work, tokens, layout, layers, stage), layout, cost)


def communication(tokens, layout, layers=0, cost=MODEL.cost):
    return slowest(lambda stage: cost.communication(tokens, layout, layers, stage), layout, cost)


def test_communication_by_hand():
    node, network = 450e9 * 0.7, 50e9 * 0.7
    # Eight collectives a layer of a token's 8,192 bytes, of which 7/8 travel.
    assert communication(1, Layout(tp=8)) - communication(0, Layout(tp=8)) == pytest.approx(
        32 * 8 * 8192 * 7 / 8 / node
    )
    assert communication(0, Layout(tp=8)) == pytest.approx(32 * 8 * 3e-5)
    # Keys and values of 4,096 bytes, three times; the ranks of CP are 8 GPUs apart, so in two nodes.
    both = Layout(cp=2, tp=8)
    assert communication(1, both) - communication(0, both) == pytest.approx(
        32 * (8 * 8192 / 2 * 7 / 8 / node + 3 * 4096 / 8 / 2 / network)
    )
    # Of four stages, the first has nine of the 32 layers, and passes activations on.
    piped = Layout(cp=2, tp=8, pp=4)
    assert communication(1, piped) - communication(0, piped) == pytest.approx(
        9 * (8 * 8192 / 2 * 7 / 8 / node + 3 * 4096 / 8 / 2 / network) + 2 * 8192 / 16 / network
    )


def test_stages_wait_for_the_slowest_link():
    def per_token(layout):
        return communication(1, layout) - communication(0, layout)

    # Eight stages fit in a node of eight GPUs, sixteen do not.
    assert per_token(Layout(pp=8)) == pytest.approx(2 * 8192 / (450e9 * 0.7))
    assert per_token(Layout(pp=16)) == pytest.approx(2 * 8192 / (50e9 * 0.7))


def test_checkpointed_layers_repeat_the_collectives_of_the_forward_pass():
    def per_token(layout, layers):
        return communication(1, layout, layers) - communication(0, layout, layers)

    assert per_token(Layout(tp=8), 32) == pytest.approx(per_token(Layout(tp=8), 0) * 12 / 8)
    assert per_token(Layout(cp=8), 32) == pytest.approx(per_token(Layout(cp=8), 0) * 4 / 3)
    assert per_token(Layout(pp=8), 32) == pytest.approx(per_token(Layout(pp=8), 0))


def test_key_value_heads_are_copied_where_sp_and_tp_divide_them_together():
    # Eight key-value heads for 16 parts: each GPU sends a sixteenth of the queries and outputs, and a whole head.
    per_token = communication(1, Layout(sp=8, tp=2)) - communication(0, Layout(sp=8, tp=2))
    of_tp = 32 * 8 * 8192 / 8 / 2 / (450e9 * 0.7)
    num_bytes = 32 * 2 * 2 * (4096 + 2 * 2048 + 4096) / 2
    near, far = 3 * num_bytes / 64 / (450e9 * 0.7), 4 * num_bytes / 64 / (50e9 * 0.7)
    assert per_token - of_tp == pytest.approx(max(near, far))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            Layout(tp=3),
            (
                "TP degree 3 and SP degree 1 cannot divide the model's attention heads; choose degrees whose product "
                "is one of 1, 2, 4, 8, 16, 32"
            ),
        ),
        (
            Layout(sp=8, tp=8),
            (
                "TP degree 8 and SP degree 8 cannot divide the model's attention heads; choose degrees whose product "
                "is one of 1, 2, 4, 8, 16, 32"
            ),
        ),
    ],
)
def test_degrees_that_do_not_divide_the_heads(layout, message):
    with pytest.raises(ConfigError) as raised:
        MODEL.cost.require_known(layout)
    assert str(raised.value) == message


def test_computing_is_divided_by_all_gpus_of_a_replica():
    alone = computing(K * K, K) - MODEL.cost.constant
    assert computing(K * K, K, Layout(cp=2, tp=4)) == pytest.approx(alone / 8)
    # Two stages: 17 layers, and 15 with the LM head, which takes as long as 2.4 layers where attention is cheap.
    head = MODEL.cost.head * K
    first, last = (alone - head) * 17 / 32, (alone - head) * 15 / 32 + head
    assert first < last
    assert computing(K * K, K, Layout(cp=2, tp=4, pp=2)) == pytest.approx(last / 8)
    long = 128 * K
    layers = computing(long**2, long) - MODEL.cost.constant - MODEL.cost.head * long
    assert computing(long**2, long, Layout(cp=2, tp=4, pp=2)) == pytest.approx(layers * 17 / 32 / 8)
    assert MODEL.cost.constant_of(Layout(tp=2)) == 0  # No weights are gathered.
    assert MODEL.cost.constant_of(Layout(cp=2)) == MODEL.cost.constant > 0


def test_memory_by_hand():
    memory = MODEL.memory
    weights = LLAMA.num_parameters
    # Of 64 GPUs, 8 share the optimizer's states of each part of the weights.
    assert memory.constant_of(Layout(tp=4)) == pytest.approx(weights / 4 * (6 + 12 / 16))
    # Each end of a pipeline holds its embedding or output layer whole.
    end = 128256 * 4096
    own = ((weights - 2 * end) * 17 / 32 + end) / 4
    assert memory.constant_of(Layout(tp=4, pp=2)) == pytest.approx(own * (6 + 12 / 8))
    assert memory.constant_of(Layout(tp=4, pp=4)) > memory.constant_of(Layout(tp=4, pp=2)) / 2
    layers = 32 * memory.per_layer_token
    # The first stage has two micro-batches of its 17 layers, the last one of its 15 and the logits.
    piped = (memory.bytes(8 * K, Layout(tp=4, pp=2)) - memory.constant_of(Layout(tp=4, pp=2))) / (2 * K)
    assert piped == pytest.approx(max(layers * 34 / 32 + memory.per_layer_token, layers * 15 / 32 + memory.per_token))


@given(layouts, st.integers(1, 256 * K), st.integers(1, 32))
def test_the_fewest_layers_are_those_that_fit(layout, tokens, smaller):
    memory = replace(MODEL.memory, limit=MODEL.memory.limit / smaller)
    found = memory.least_checkpoint_layers(tokens, layout)
    fitting = [n for n in range(33) if memory.bytes(tokens, layout, n) <= memory.limit]
    assert found == (fitting[0] if fitting else None)
    longest = memory.longest(layout)
    if longest:
        assert memory.bytes(longest, layout, 32) <= memory.limit * (1 + 1e-9)
    assert memory.bytes(longest + 1, layout, 32) > memory.limit * (1 - 1e-9)


@given(layouts, st.sampled_from(["tp", "pp", "cp"]), st.integers(1, 1 << 20), st.integers(0, 32))
def test_a_higher_degree_computes_less_and_communicates(layout, name, tokens, layers):
    more = layout._replace(**{name: 2 * getattr(layout, name)})
    assert computing(tokens**2, tokens, more, layers) < computing(tokens**2, tokens, layout, layers)
    assert communication(tokens, more, layers) > 0


def test_layouts_divide_the_gpus_and_the_heads():
    assert MODEL.layouts(64, Layout(tp=8, pp=2)) == [Layout(sp=sp, tp=8, pp=2) for sp in (1, 2, 4)]
    assert MODEL.layouts(64, Layout(cp=2, tp=8)) == [Layout(cp=2, tp=8)]
    assert MODEL.layouts(12, Layout(tp=8)) == []


def test_links_that_are_not_known():
    cost = replace(MODEL.cost, model_parallel=None)
    cost.require_known(ONE_GPU)
    with pytest.raises(ConfigError) as raised:
        communication(1, Layout(tp=2), cost=cost)
    assert str(raised.value) == (
        "the profile has no bandwidth, so the time of a replica of 2 GPUs (sp1-tp2) is not known; measure again with "
        "hbpack profile --bandwidth NODE,NETWORK, or give --model and --gpu"
    )


def test_links_between_nodes_that_are_not_known():
    links = replace(MODEL.cost.model_parallel, network_bandwidth=0.0)
    cost = replace(MODEL.cost, model_parallel=links)
    for layout in (Layout(tp=8), Layout(sp=2, tp=4)):
        assert communication(K, layout, cost=cost) == communication(K, layout)
    with pytest.raises(ConfigError) as raised:
        communication(K, Layout(tp=8, pp=2), cost=cost)
    assert str(raised.value) == (
        "the profile has no bandwidth between nodes of 8 GPUs, so the time of a replica of 16 GPUs (sp1-tp8-pp2) is "
        "not known; measure again with hbpack profile --bandwidth NODE,NETWORK, or give --model and --gpu"
    )


def test_more_stages_than_layers():
    with pytest.raises(ConfigError) as raised:
        MODEL.cost.require_known(Layout(pp=64))
    assert str(raised.value) == "64 pipeline stages are more than the model's 32 layers; give a lower pp"
