"""A transformers model runs packed rows as it runs their samples one by one, and everything else as before."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters.causal_lm import (  # noqa: E402
    PackedRow,
    check_packed_rows,
    finished_logits,
    inputs_of,
    run_packed_rows,
)
from packer_cli.loader.checkpointing import LayerCheckpointing  # noqa: E402
from packer_cli.loader.losses import token_losses  # noqa: E402

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
    loss = model(**inputs_of(batch, CPU), packed_row=row).loss
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


def test_the_logits_of_a_row_are_never_whole():
    length, vocabulary = 16_384, 32_000
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    run_packed_rows(model)
    ids = torch.arange(length)[None] % vocabulary
    borders = torch.arange(0, length + 1, 1024, dtype=torch.int32)
    batch = {"input_ids": ids, "position_ids": torch.arange(length)[None] % 1024, "cu_seq_lens_q": borders}
    batch |= {"labels": torch.where(batch["position_ids"] > 0, ids, -100), "max_length_q": 1024}
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
    assert str(error.value) == 'the model has a soft cap; load it with attn_implementation="flash_attention_2"'


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LlamaConfig, {"attention_dropout": 0.1}, "LlamaForCausalLM has attention dropout, which packed rows do not"),
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
        model(**inputs_of(batch, CPU), packed_row=row)


def test_a_model_that_mixes_samples_is_found_out():
    model = make(LlamaConfig)
    run_packed_rows(model)
    decoder = model.get_decoder()
    mixing = decoder.forward
    decoder.forward = lambda *args, **kwargs: _rolled(mixing(*args, **kwargs))
    with pytest.raises(ConfigError, match="two samples in a row have a loss that is"):
        check_packed_rows(model, CPU)


def _rolled(output):
    """As a convolution that sees the token before."""
    output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.roll(1, dims=1)
    return output
