"""The loss of a packed row: what it needs in memory, and the kernels that make it."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
)

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader import losses  # noqa: E402
from packer_cli.loader.adapters import packed_row  # noqa: E402
from packer_cli.loader.adapters.causal_lm import run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import PackedRow, finished_logits  # noqa: E402
from tests.loader.small_rows import FAMILIES, Largest, gradients, make, make_batch, one_by_one, run  # noqa: E402


def test_a_row_without_a_loss_keeps_the_graph():
    """Each rank runs the output layer, or FSDP would wait for its gradient."""
    model = make(LlamaConfig)
    run_packed_rows(model)
    batch = make_batch()
    batch["labels"][:] = -100
    found = gradients(model, run(model, batch))
    assert all(float(gradient.abs().max()) == 0 for gradient in found.values())


def test_neither_the_logits_of_a_row_nor_its_scores_are_ever_whole(monkeypatch):
    length, vocabulary = 4096, 8000
    monkeypatch.setattr(losses, "CHUNK", length * vocabulary // 16)
    assert 2 * (length // 2) ** 2 > length * vocabulary / 8, "whole scores would not show"
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    run_packed_rows(model)
    ids = torch.arange(length)[None] % vocabulary
    borders = torch.arange(0, length + 1, length // 2, dtype=torch.int32)
    batch = {"input_ids": ids, "position_ids": torch.arange(length)[None] % (length // 2), "cu_seq_lens_q": borders}
    batch |= {"labels": torch.where(batch["position_ids"] > 0, ids, -100), "max_length_q": length // 2}
    with Largest() as largest:
        run(model, batch).backward()
    assert largest.elements < length * vocabulary / 8


def test_capped_logits_are_those_of_the_model():
    """Gemma 2, whose attention has soft caps, so that its rows need flash attention."""
    model = make(Gemma2Config, "eager", final_logit_softcapping=3.0)
    hidden = model.model(make_batch()["input_ids"]).last_hidden_state
    own = model(make_batch()["input_ids"]).logits
    torch.testing.assert_close(finished_logits(model.lm_head(hidden), model.config), own)
    run_packed_rows(model)
    with pytest.raises(ConfigError) as error:
        run(model, make_batch())
    assert (
        str(error.value)
        == 'the model has a soft cap; load it with attn_implementation="flash_attention_2", or "flex_attention"'
    )


@pytest.mark.skipif(
    find_spec("liger_kernel") is None or not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET")),
    reason="needs liger-kernel, and a GPU or TRITON_INTERPRET=1",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_ligers_kernel_trains_as_samples_one_by_one(monkeypatch, family):
    config, options = FAMILIES[family]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make(config, **options).float().to(device)
    batch = {name: value.to(device) if torch.is_tensor(value) else value for name, value in make_batch().items()}
    wanted = gradients(model, one_by_one(model, batch))
    run_packed_rows(model)
    monkeypatch.delattr(packed_row, "in_chunks")
    row = PackedRow(batch, None, factor=0.25, device=device)
    loss = row.run(model)
    assert loss.item() == pytest.approx(one_by_one(model, batch).item(), rel=1e-5)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5)
