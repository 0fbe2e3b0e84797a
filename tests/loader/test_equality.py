"""A packed row trains as its samples one by one: the same losses and gradients, through every attention path."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from packer_cli.loader import PackedDataset
from packer_cli.loader.formats.flex import document_mask
from packer_cli.loader.losses import token_losses
from packer_cli.loader.parallel import packed_attention
from tests.loader.flash_twin import install_flash_twin
from tests.loader.llama import closeness, gradients, sample_losses, tiny_llama

EXACT = 1e-10  # float64


def rows(packed: Any, name: str, count: int = 3, **kwargs: Any) -> list[Any]:
    """Real rows of several samples, with padding at the tail."""
    ds = PackedDataset(packed.path, 0, packed.num_gpus, format=name, sp_slice=False, pad_to_multiple_of=5, **kwargs)
    found = [b for b in ds if b["num_samples"] > 2 and b["sample_num_loss_tokens"][1:].max() > 5]
    assert len(found) >= count
    return found[:count]


def samples_of(packed: Any, batch: Any) -> list[Any]:
    return [packed.samples[i] for i in batch["sample_ids"].tolist()]


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """As ForCausalLMLoss does it."""
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]


def run(model: Any, batch: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses of a row of format transformers, and the gradients of their sum."""
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")} | kwargs
    losses = token_losses(model(**inputs).logits, shifted(batch["labels"]))
    losses.sum().backward()
    return losses.detach(), gradients(model)


def expected(model: Any, packed: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    losses = torch.cat(sample_losses(model, samples_of(packed, batch)))
    assert int((losses > 0).sum()) == batch["num_loss_tokens"]
    length = batch["input_ids"].shape[1]
    return torch.cat([losses, losses.new_zeros(length - len(losses))]), gradients(model)


def assert_equal(found: Any, wanted: Any, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=tolerance, atol=tolerance)
    assert closeness(wanted[1], found[1]) < tolerance


def forgotten(batch: Any) -> int:
    """The border to plant the error at: before a sample with many loss tokens, which would see the one before."""
    return 1 + int(batch["sample_num_loss_tokens"][1:].argmax())


def planted(batch: Any) -> torch.Tensor:
    """The borders without one: two samples merge."""
    borders = batch["cu_seq_lens_q"].tolist()
    del borders[forgotten(batch)]
    return torch.tensor(borders, dtype=torch.int32)


def test_sdpa_with_position_ids_as_transformers_finds_packs(packed: Any) -> None:
    model = tiny_llama("sdpa")
    for batch in rows(packed, "transformers"):
        wanted = expected(model, packed, batch)
        assert_equal(run(model, batch), wanted)
        i = forgotten(batch)
        before, start, stop = batch["cu_seq_lens_q"][i - 1 : i + 2].tolist()
        wrong = batch["position_ids"].clone()
        wrong[0, start:stop] += start - before  # the sample goes on where the one before it ends
        losses, grads = run(model, batch, position_ids=wrong)
        assert float((losses - wanted[0]).abs().max()) > 1e-3
        assert closeness(wanted[1], grads) > 1e-3


def test_the_models_own_loss_shifts_the_labels_once(packed: Any) -> None:
    """Given `labels` the model shifts, given `shift_labels` it does not; both are the mean over the loss tokens."""
    model = tiny_llama("sdpa", dtype=torch.float32)
    ranks = [PackedDataset(packed.path, 0, packed.num_gpus, sp_slice=False)[i] for i in range(len(packed.epochs[0]))]
    batches = [b for b in ranks if b["num_loss_tokens"] > 10 and b["sp_size"] > 1]
    assert len(batches) > 1
    for batch in batches[:2]:
        inputs = {name: batch[name] for name in ("input_ids", "position_ids", "labels")}
        losses = torch.cat(sample_losses(model, samples_of(packed, batch)))
        wanted = float(losses.sum()) / batch["num_loss_tokens"]
        assert model(**inputs).loss.item() == pytest.approx(wanted, rel=1e-5)
        assert model(**inputs, shift_labels=batch["shift_labels"]).loss.item() == pytest.approx(wanted, rel=1e-5)
        # What goes wrong when labels that are shifted already are shifted again.
        assert model(**inputs | {"labels": batch["shift_labels"]}).loss.item() != pytest.approx(wanted, rel=1e-3)


def test_varlen_through_the_flash_path_of_transformers(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own code down to `flash_attn_varlen_func`, which stands in a plain twin of that kernel here."""
    calls = install_flash_twin(monkeypatch)
    model, plain = tiny_llama("flash_twin"), tiny_llama("sdpa")
    for batch in rows(packed, "transformers"):
        keys = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
        wanted = expected(plain, packed, batch)
        calls.clear()
        assert_equal(run(model, batch, **{key: batch[key] for key in keys}), wanted)
        assert calls == [len(batch["cu_seq_lens_q"])] * 2, "not the borders of the batch"
        wrong = planted(batch)
        lengths = dict.fromkeys(keys[2:], int(wrong.diff().max()))
        losses, grads = run(model, batch, **dict.fromkeys(keys[:2], wrong), **lengths)
        assert float((losses - wanted[0]).abs().max()) > 1e-3
        assert closeness(wanted[1], grads) > 1e-3


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_document_mask(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers takes a BlockMask as attention_mask. The eager kernel, also backward, which torch bars on CPUs."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)

    def flex_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        assert isinstance(attention_mask, flex.BlockMask)
        out = flex.flex_attention(
            query, key, value, block_mask=attention_mask, scale=kwargs["scaling"], enable_gqa=True
        )
        return out.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flex_eager", flex_forward)
    model, plain = tiny_llama("flex_eager"), tiny_llama("sdpa")
    for batch in rows(packed, "transformers", count=2):
        wanted = expected(plain, packed, batch)
        found = run(model, batch, attention_mask=document_mask(batch["cu_seq_lens_q"], block_size=16))
        assert_equal(found, wanted)
        losses, grads = run(model, batch, attention_mask=document_mask(planted(batch), block_size=16))
        assert float((losses - wanted[0]).abs().max()) > 1e-3
        assert closeness(wanted[1], grads) > 1e-3


def test_torch_varlen(packed: Any) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    names = list(inspect.signature(varlen.varlen_attn).parameters)
    assert names[3:7] == ["cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    if not torch.cuda.is_available():
        pytest.skip("torch's varlen kernel runs on GPUs only")
    (batch,) = rows(packed, "flash-attn", count=1)
    torch.manual_seed(0)
    length = len(batch["input_ids"])
    q, k, v = (torch.randn(length, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 4, 4))
    borders = batch["cu_seqlens_q"].cuda()
    found = varlen.varlen_attn(
        q, k, v, borders, borders, batch["max_seqlen_q"], batch["max_seqlen_k"], window_size=(-1, 0)
    )
    wanted = packed_attention(*(x.double() for x in (q, k, v)), batch["cu_seqlens_q"])
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["torchtitan", "torchtune", "megatron", "megatron-thd", "deepspeed"])
def test_formats_with_shifted_labels_give_the_same_losses(packed: Any, name: str) -> None:
    """Logits and labels as the trainer pairs them, no shift between; borders from what the format tells."""
    model = tiny_llama("sdpa")
    ds = PackedDataset(packed.path, 0, packed.num_gpus, format=name, sp_slice=False)
    plain = PackedDataset(packed.path, 0, packed.num_gpus, sp_slice=False)
    chosen = [i for i, b in enumerate(plain) if b["num_samples"] > 2 and b["num_loss_tokens"] > 10]
    chosen = [i for i in chosen if plain[i]["sp_size"] == 1][:1] + [i for i in chosen if plain[i]["sp_size"] > 1][:1]
    assert len(chosen) == 2
    for i in chosen:
        batch = ds[i]
        if name == "torchtitan":
            inputs, labels = batch
            ids, positions = inputs["input"][None], inputs["positions"][None]
        else:
            keys = {"torchtune": ("tokens", "input_pos", "labels"),
                    "deepspeed": ("input_ids", "position_ids", "shift_labels")}.get(
                    name, ("tokens", "position_ids", "labels"))  # fmt: skip
            ids, positions, labels = (torch.atleast_2d(batch[key]) for key in keys)
        found = token_losses(model(input_ids=ids, position_ids=positions).logits, labels)
        wanted = torch.cat(sample_losses(model, samples_of(packed, plain[i])))
        wanted, found = wanted[wanted > 0], found[labels.flatten() != -100]
        torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)
