"""A transformers model runs packed rows as it runs their samples one by one, and everything else as before."""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType

import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTNeoConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
)

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import PackedRow  # noqa: E402
from packer_cli.loader.layer_checkpointing import LayerCheckpointing  # noqa: E402
from tests.loader.small_rows import CPU, FAMILIES, SIZES, VOCABULARY, gradients, make, make_batch, one_by_one, run  # noqa: E402


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("attention", "exact"), [("sdpa", 1e-6), ("eager", 1e-5)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_trains_as_its_samples_one_by_one(family, attention, exact, weighted):
    config, options = FAMILIES[family]
    model, batch = make(config, attention, **options), make_batch(weighted=weighted)
    wanted = gradients(model, one_by_one(model, batch))
    run_packed_rows(model)
    run_packed_rows(model)  # As often as one likes.
    loss = run(model, batch)
    assert loss.item() == pytest.approx(one_by_one(model, batch).item(), rel=exact)
    for checkpoint_layers in (0, 1, 2):
        LayerCheckpointing(model).set(checkpoint_layers)
        found = gradients(model, run(model, batch))
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=exact, atol=exact)
    check_packed_rows(model, CPU)
    merged = dict(batch, cu_seq_lens_q=torch.tensor([0, sum(SIZES)], dtype=torch.int32), max_length_q=sum(SIZES))
    if family != "mistral":  # Whose window is as long as its longest sample.
        assert run(model, merged).item() != pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_all_else_runs_as_before(attention, tmp_path):
    """Padded batches, generation, the saved configuration; also where two models have unlike attention."""
    model, other = make(LlamaConfig, attention), make(LlamaConfig, "eager" if attention == "sdpa" else "sdpa")
    ids = make_batch()["input_ids"]
    padded = {"input_ids": torch.cat([ids, ids.flip(1)]), "attention_mask": torch.ones(2, 24, dtype=torch.long)}
    padded["attention_mask"][0, -9:] = 0
    before = model(**padded).logits, model.generate(ids[:, :6], max_new_tokens=4, do_sample=False)
    model.save_pretrained(tmp_path / "before")
    run_packed_rows(other)
    run_packed_rows(model)
    assert torch.equal(model(**padded).logits, before[0])
    assert torch.equal(model.generate(ids[:, :6], max_new_tokens=4, do_sample=False), before[1])
    model.save_pretrained(tmp_path / "after")
    assert (tmp_path / "after/config.json").read_text() == (tmp_path / "before/config.json").read_text()
    run(model, make_batch()).backward()
    assert torch.equal(model(**padded).logits, before[0])


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (Lfm2Config, {"layer_types": ["conv", "full_attention"]}, "has conv layers, whose states would begin anew"),
        (
            LlamaConfig,
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "has positions of type dynamic, which depend on the length that a GPU sees",
        ),
    ],
)
def test_what_cannot_share_rows_is_refused_there(config, options, message):
    model, batch = make(config, **options), make_batch()
    run_packed_rows(model)
    row = PackedRow(batch, object(), factor=1.0, device=CPU)  # A group of several ranks.
    with pytest.raises(ConfigError, match=message):
        row.run(model)


def test_what_a_row_would_leave_out_is_refused_in_training():
    """Dropout of attention under any name, the auxiliary loss of a router."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0)
    model = run_packed_rows(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train())
    with pytest.raises(ConfigError, match="GPT2Attention has dropout of attention, which packed rows do not have"):
        run(model, make_batch())
    run(model.eval(), make_batch())
    model = run_packed_rows(make(MixtralConfig, num_local_experts=2, output_router_logits=True).float())
    with pytest.raises(ConfigError, match="MixtralForCausalLM has an auxiliary loss of its router"):
        run(model, make_batch())
    model.config.router_aux_loss_coef = 0.0
    check_packed_rows(model, CPU)
    run(model, make_batch())


def test_a_copy_of_a_model_trains_itself():
    model, batch = make(LlamaConfig), make_batch()
    run_packed_rows(model)
    run(model, batch)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert run(twin, batch).item() == pytest.approx(one_by_one(twin, batch).item(), rel=1e-6)
    assert run(model, batch).item() != pytest.approx(run(twin, batch).item(), rel=1e-3)
    run(twin, batch).backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_put_into_a_patched_model_is_used_or_found():
    """A new output layer; another library's forward pass, until packed rows are patched on top of it."""
    model, batch = run_packed_rows(make(LlamaConfig)), make_batch()
    before = run(model, batch).item()
    torch.manual_seed(3)
    model.set_output_embeddings(torch.nn.Linear(32, VOCABULARY, dtype=torch.float64))
    assert run(model, batch).item() == pytest.approx(one_by_one(model, batch).item(), rel=1e-6)
    assert run(model, batch).item() != pytest.approx(before, rel=1e-3)
    model.forward = MethodType(type(model).forward, model)
    with pytest.raises(ConfigError, match=r"call run_packed_rows.model. before anything wraps it, and again"):
        run(model, batch)
    run_packed_rows(model)
    assert run(model, batch).item() == pytest.approx(one_by_one(model, batch).item(), rel=1e-6)


def test_models_that_drop_the_row_are_refused():
    model = run_packed_rows(make(LlamaConfig))
    for layer in model.model.layers:
        layer.self_attn.forward = partial(_without_row, layer.self_attn.forward)
    with pytest.raises(ConfigError, match="the layers around LlamaAttention do not pass packed rows to it"):
        check_packed_rows(model, CPU)
    model = make(LlamaConfig)
    model.get_decoder = lambda: torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="LlamaForCausalLM takes no keyword arguments for its attention"):
        run_packed_rows(model)


def _without_row(forward, *args, packed_row=None, **kwargs):
    return forward(*args, **kwargs)


@pytest.mark.parametrize("is_patched_first", [False, True])
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["q_proj", "lm_head"]])
def test_lora_trains_as_sample_by_sample(targets, is_patched_first):
    peft = pytest.importorskip("peft")
    model, batch = make(LlamaConfig), make_batch(weighted=True)
    if is_patched_first:
        run_packed_rows(model)
    torch.manual_seed(5)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    model.double()
    one_by_one(model, batch).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    run_packed_rows(model)
    check_packed_rows(model, CPU)
    run(model, batch).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (name in wanted)
        if name in wanted:
            assert float(wanted[name].abs().max()) > 0
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_that_mixes_samples_is_found_out(dtype):
    model = make(LlamaConfig).to(dtype)
    run_packed_rows(model)
    check_packed_rows(model, CPU)
    decoder = model.get_decoder()
    mixing = decoder.forward
    decoder.forward = lambda *args, **kwargs: _rolled(mixing(*args, **kwargs))
    with pytest.raises(ConfigError, match="other tokens in one of two samples in a row change the other by"):
        check_packed_rows(model, CPU)


def test_other_logits_are_found_out():
    model = run_packed_rows(make(LlamaConfig))
    model._forward_of_batches = lambda *args, **kwargs: _scaled(type(model).forward(model, *args, **kwargs))
    with pytest.raises(ConfigError, match=r"two samples in a row give something else than one by one \(.*% off\)"):
        check_packed_rows(model, CPU)


def _scaled(output):
    output.logits = output.logits * 1.5
    return output


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
        (GPTNeoConfig, {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}),
    ],
)
def test_attention_of_its_own_is_found_out_before_training(config, options):
    """Of new weights, where attention hardly counts yet."""
    model = AutoModelForCausalLM.from_config(config(vocab_size=VOCABULARY, **options), attn_implementation="eager")
    run_packed_rows(model)
    with pytest.raises(ConfigError, match="do not take their attention from transformers' interface"):
        check_packed_rows(model, CPU)


def test_the_check_leaves_modes_as_they_were():
    model = run_packed_rows(make(LlamaConfig))
    model.eval()
    model.model.layers[1].train()
    wrapper = torch.nn.Module()
    wrapper.module = model
    wrapper.forward = model.forward
    check_packed_rows(wrapper, CPU)
    assert [model.training, model.model.layers[0].training, model.model.layers[1].training] == [False, False, True]


def test_prompts_of_peft_are_refused():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(ConfigError, match="prompts and prefixes of PEFT would come before a row"):
        run_packed_rows(peft.get_peft_model(make(LlamaConfig), config))


def _rolled(output):
    """As a convolution that sees the token before."""
    output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.roll(1, dims=1)
    return output
