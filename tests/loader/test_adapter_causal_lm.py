"""A transformers model runs packed rows as it runs their samples one by one, and everything else as before."""

from __future__ import annotations

import copy
import os
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from types import MethodType

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3Config,
)
from transformers.integrations import flex_attention  # noqa: E402

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters import row_attention, row_loss  # noqa: E402
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import PackedRow  # noqa: E402
from packer_cli.loader.adapters.row_attention import block_mask  # noqa: E402
from packer_cli.loader.adapters.row_loss import finished_logits  # noqa: E402
from packer_cli.loader.checkpointing import LayerCheckpointing  # noqa: E402
from packer_cli.loader.losses import token_losses  # noqa: E402
from packer_cli.loader.parallel.attention import ulysses_attention  # noqa: E402

CPU = torch.device("cpu")
VOCABULARY = 97
SIZES = (5, 12, 7)


def make(config_class, attention="sdpa", **options):
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
        **options,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().train()


def make_batch(sizes=SIZES, *, weighted=False):
    """A row of samples without a loss on every third token."""
    total = sum(sizes)
    ids = torch.arange(total) * 7919 % (VOCABULARY - 3) + 3
    positions = torch.cat([torch.arange(size) for size in sizes])
    labels = torch.where((positions > 0) & (positions % 3 > 0), ids, -100)
    borders = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    batch = {
        "input_ids": ids[None], "position_ids": positions[None], "labels": labels[None], "cu_seq_lens_q": borders,
        "max_length_q": max(sizes),
    }  # fmt: skip
    if weighted:
        batch["loss_weights"] = (torch.arange(total) % 5)[None].float()
    return batch


def run(model, batch, factor=0.25):
    row = PackedRow(batch, None, factor=factor, device=CPU)
    loss = row.run(model)
    assert torch.equal(loss.detach(), row.loss)
    return loss


def one_by_one(model, batch, factor=0.25):
    """Its own logits, without a row."""
    total = torch.zeros((), dtype=torch.float64)
    for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()):
        logits = model(input_ids=batch["input_ids"][:, begin:end], use_cache=False).logits
        weights = batch.get("loss_weights")
        shifted = None if weights is None else weights[:, begin + 1 : end]
        total = total + token_losses(logits[:, :-1], batch["labels"][:, begin + 1 : end], shifted).sum()
    return total * factor


def gradients(model, loss):
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


FAMILIES = {
    "llama": (LlamaConfig, {}),
    "qwen3": (Qwen3Config, {}),
    "mistral": (MistralConfig, {"sliding_window": 12}),
    "scaled": (CohereConfig, {"logit_scale": 0.2}),
    "divided": (GraniteConfig, {"logits_scaling": 8.0}),
    "tied": (LlamaConfig, {"tie_word_embeddings": True}),
}


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


def test_a_row_without_a_loss_keeps_the_graph():
    """Each rank runs the output layer, or FSDP would wait for its gradient."""
    model = make(LlamaConfig)
    run_packed_rows(model)
    batch = make_batch()
    batch["labels"][:] = -100
    found = gradients(model, run(model, batch))
    assert all(float(gradient.abs().max()) == 0 for gradient in found.values())


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def test_neither_the_logits_of_a_row_nor_its_scores_are_ever_whole():
    length, vocabulary = 16_384, 32_000
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


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LlamaConfig, {"attention_dropout": 0.1}, "LlamaAttention has dropout of attention, which packed rows"),
        (Cohere2Config, {"sliding_window": 6}, "the model has a sliding window of 6 tokens, and a sample has 12"),
    ],
)
def test_what_would_train_otherwise_is_refused(config, options, message):
    model = make(config, **options)
    with pytest.raises(ConfigError, match=message):
        run(run_packed_rows(model), make_batch())


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
    monkeypatch.delattr(row_loss, "_in_chunks")
    row = PackedRow(batch, None, factor=0.25, device=device)
    loss = row.run(model)
    assert loss.item() == pytest.approx(one_by_one(model, batch).item(), rel=1e-5)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5)


def test_a_compiled_model_is_compiled_twice_for_all_rows_and_degrees(monkeypatch):
    """Once for the first length, once for all others; the exchange between ranks stays outside."""
    exchanged = []

    def alone(query, key, value, borders, group, attend):
        assert not torch.compiler.is_compiling()
        exchanged.append(group)
        return ulysses_attention(query, key, value, borders, None, attend)

    monkeypatch.setattr(row_attention, "ulysses_attention", alone)
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
    with pytest.raises(ConfigError, match="the layers around LlamaAttention hand no packed row on to it"):
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


@pytest.mark.parametrize("window", [None, 1, 100, 300])
@pytest.mark.parametrize("sizes", [(5,), (128, 128), (300, 1, 127, 40, 400), (1000,)])
def test_the_mask_of_flex_attention_is_that_of_every_pair(sizes, window):
    from torch.nn.attention.flex_attention import create_block_mask

    borders = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    segment = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def sees(batch, head, query, key):
        is_near = query - key < (window or 10_000)
        return (key <= query) & (segment[query] == segment[key]) & is_near

    found = block_mask(borders, window, CPU)
    wanted = create_block_mask(sees, None, None, borders[-1], borders[-1], device="cpu")
    assert torch.equal(found.to_dense(), wanted.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    place = torch.arange(borders[-1])
    assert torch.equal(found.mask_mod(0, 0, place[:, None], place[None]), sees(0, 0, place[:, None], place[None]))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (LlamaConfig, {}),
        (MistralConfig, {"sliding_window": 6}),
        (Gemma2Config, {"attn_logit_softcapping": 5.0, "sliding_window": 6, "final_logit_softcapping": 3.0}),
    ],
)
def test_flex_attention_has_the_loss_of_samples_one_by_one(monkeypatch, config, options):
    """Forward and not compiled, which is all of it that torch has on CPUs."""
    plain = lambda q, k, v, training=False, **others: flex_attention.flex_attention(q, k, v, **others)  # noqa: E731
    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", plain)
    model, batch = make(config, "flex_attention", **options).float(), make_batch()
    with torch.no_grad():
        wanted = one_by_one(model, batch)
        run_packed_rows(model)
        assert run(model, batch).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_a_model_that_mixes_samples_is_found_out():
    model = make(LlamaConfig)
    run_packed_rows(model)
    decoder = model.get_decoder()
    mixing = decoder.forward
    decoder.forward = lambda *args, **kwargs: _rolled(mixing(*args, **kwargs))
    with pytest.raises(
        ConfigError, match="its layers mix samples: another one before it changes the loss of a sample"
    ):
        check_packed_rows(model, CPU)


def test_other_logits_are_found_out():
    model = run_packed_rows(make(LlamaConfig))
    model._forward_of_batches = lambda *args, **kwargs: _scaled(type(model).forward(model, *args, **kwargs))
    with pytest.raises(ConfigError, match=r"two samples in a row have a loss that is .*% off from theirs one by one"):
        check_packed_rows(model, CPU)


def _scaled(output):
    output.logits = output.logits * 1.5
    return output


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (GPTJConfig, {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
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
    with pytest.raises(ConfigError, match="prompts and prefixes of PEFT would stand before a row"):
        run_packed_rows(peft.get_peft_model(make(LlamaConfig), config))


def _rolled(output):
    """As a convolution that sees the token before."""
    output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.roll(1, dims=1)
    return output
