"""The attention of packed rows over each kernel; test_adapter_causal_lm.py trains with it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from transformers import (  # noqa: E402
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
)
from transformers.integrations import flex_attention  # noqa: E402

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters import causal_lm  # noqa: E402
from packer_cli.loader.adapters.causal_lm import run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import PackedRow  # noqa: E402
from packer_cli.loader.formats.flex import document_mask  # noqa: E402
from packer_cli.loader.parallel.attention import ulysses_attention  # noqa: E402
from tests.loader.small_rows import CPU, SIZES, make, make_batch, one_by_one, run  # noqa: E402


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LlamaConfig, {"attention_dropout": 0.1}, "LlamaAttention has dropout of attention, which packed rows"),
        (Gemma2Config, {"attention": "eager"}, "the model has a soft cap; load it with attn_implementation="),
    ],
)
def test_what_would_train_otherwise_is_refused(config, options, message):
    model = make(config, **options)
    with pytest.raises(ConfigError, match=message):
        run(run_packed_rows(model), make_batch())


def test_torchs_own_attention_has_sliding_windows():
    model = make(MistralConfig, sliding_window=6)
    wanted = one_by_one(model, make_batch())
    assert run(run_packed_rows(model), make_batch()).item() == pytest.approx(wanted.item(), rel=1e-9)
    assert abs(one_by_one(make(MistralConfig, sliding_window=5), make_batch()) / wanted - 1) > 1e-4


@pytest.mark.slow
def test_a_compiled_model_is_compiled_twice_for_all_rows_and_degrees(monkeypatch):
    """Once for the first length, once for all others; the exchange between ranks stays outside."""
    exchanged = []

    def alone(query, key, value, borders, group, attend):
        assert not torch.compiler.is_compiling()
        exchanged.append(group)
        return ulysses_attention(query, key, value, borders, None, attend)

    monkeypatch.setattr(causal_lm, "ulysses_attention", alone)
    model = run_packed_rows(make(LlamaConfig))
    counter = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=counter)
    groups = None, object(), object()  # Three degrees.
    frames = []
    for sizes in (SIZES, (8, 3), (20,), (5, 5, 5, 5), (9, 30), (2, 3, 4, 5, 6, 7)):
        for group in groups:
            row = PackedRow(make_batch(sizes), group, factor=1.0, device=CPU)
            row.run(compiled).backward()
            assert row.loss.item() == pytest.approx(run(model, make_batch(sizes), 1.0).item(), rel=1e-9)
        frames.append(counter.frame_count)
    assert {*exchanged} == {*groups}
    assert frames[0] > 0
    assert set(frames[1:]) == {frames[1]}, frames
    assert frames[1] <= 2 * frames[0]


@pytest.mark.parametrize("window", [None, 1, 100, 300])
@pytest.mark.parametrize("sizes", [(5,), (128, 128), (300, 1, 127, 40, 400), (1000,)])
def test_the_mask_of_flex_attention_is_that_of_every_pair(sizes, window):
    from torch.nn.attention.flex_attention import create_block_mask

    borders = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    segment = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def sees(batch, head, query, key):
        is_near = query - key < (window or 10_000)
        return (key <= query) & (segment[query] == segment[key]) & is_near

    found = document_mask(torch.tensor(borders), window=window)
    wanted = create_block_mask(sees, None, None, borders[-1], borders[-1], device="cpu")
    assert torch.equal(found.to_dense(), wanted.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    place = torch.arange(borders[-1])
    assert torch.equal(found.mask_mod(0, 0, place[:, None], place[None]), sees(0, 0, place[:, None], place[None]))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (LlamaConfig, {}),  # As every other layer of Gemma2.
        (MistralConfig, {"sliding_window": 6}),  # As in every other layer of:
        (Gemma2Config, {"attn_logit_softcapping": 5.0, "sliding_window": 6, "final_logit_softcapping": 3.0}),
    ],
)
@pytest.mark.slow
def test_flex_attention_has_the_loss_of_samples_one_by_one(monkeypatch, config, options):
    """Forward and not compiled, which is all of it that torch has on CPUs."""
    plain = lambda q, k, v, training=False, **others: flex_attention.flex_attention(q, k, v, **others)  # noqa: E731
    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", plain)
    model, batch = make(config, "flex_attention", **options).float(), make_batch()
    with torch.no_grad():
        wanted = one_by_one(model, batch)
        run_packed_rows(model)
        assert run(model, batch).item() == pytest.approx(wanted.item(), rel=1e-5)
