"""Hybrids of attention and recurrent layers keep the samples of a row apart, with `seq_idx` and not without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import DataCollatorWithFlattening

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.losses import token_losses
from packer_cli.loader.parallel import SHARDINGS, take_slice
from tests.loader.kernels import modeling
from tests.loader.llama import VOCABULARY, closeness, gradients, sample_losses

COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.3, "use_cache": False,
}  # fmt: skip
DELTA = {
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
BAMBA = {
    "num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8,
}  # fmt: skip
NEMOTRON = {
    "layers_block_type": ["mamba", "attention"], "head_dim": 8, "mamba_num_heads": 8, "mamba_head_dim": 8,
    "n_groups": 2, "ssm_state_size": 8,
}  # fmt: skip
HYBRIDS = {
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**DELTA, "num_experts": 0}),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", DELTA),
    "bamba": ("BambaForCausalLM", "BambaConfig", BAMBA),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig", NEMOTRON),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
}
SAME, OTHER = 1e-5, 1e-2
"""Greatest differences: rounding of norms and decays, which these models compute in float32; samples that mix."""

Make = Callable[[str, bool], Any]


@pytest.fixture
def make() -> Make:
    """A tiny model of a name, on this machine's path without kernels or on twins of the kernels."""

    def make(name: str, with_kernels: bool) -> Any:
        pytest.importorskip(f"transformers.models.{name}")
        model, config, options = HYBRIDS[name]
        with modeling(name, with_kernels) as module:
            torch.manual_seed(0)
            configuration = getattr(transformers, config)(**COMMON, **options)
            return getattr(module, model)(configuration).double().train()

    return make


def short_row(packed: Any) -> Any:
    """A short row (the twins go token by token) with loss after its first sample, and with padding at the tail."""
    ds = PackedDataset(packed.path, 0, packed.num_gpus, sp_slice=False, pad_to_multiple_of=5)
    padded = (b for b in ds if 2 < b["num_samples"] < len(b["cu_seq_lens_q"]) - 1 and b["input_ids"].numel() < 80)
    return next(b for b in padded if b["sample_num_loss_tokens"][1:].max() > 5)


def row_losses(model: Any, batch: Any, keys: Any) -> torch.Tensor:
    losses = token_losses(
        model(**{key: batch[key] for key in keys}, use_cache=False).logits,
        torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:],
    )
    losses.sum().backward()
    return losses.detach()


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_a_row_trains_as_its_samples_one_by_one(packed: Any, make: Make, name: str) -> None:
    """transformers' own code down to the kernels, whose plain twins stand in."""
    model = make(name, True)
    batch = short_row(packed)
    samples = [packed.samples[i] for i in batch["sample_ids"].tolist()]
    wanted = torch.cat(sample_losses(model, samples))
    wanted = torch.cat([wanted, wanted.new_zeros(batch["input_ids"].numel() - len(wanted))])
    wanted_gradients = gradients(model)

    keys = set(PackedRow(batch, None, factor=1.0, device=torch.device("cpu")).inputs)
    found = row_losses(model, batch, keys)
    torch.testing.assert_close(found, wanted, rtol=SAME, atol=SAME)
    assert closeness(wanted_gradients, gradients(model)) < SAME

    without = row_losses(model, batch, set(keys) - {"seq_idx"})
    assert float((without - wanted).abs().max()) > OTHER
    assert closeness(wanted_gradients, gradients(model)) > OTHER


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_without_the_kernels_transformers_refuses_and_does_not_mix(packed: Any, make: Make, name: str) -> None:
    model, twin = make(name, False), make(name, True)
    batch = short_row(packed)
    keys = ("input_ids", "position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    with pytest.raises(ValueError, match="can't keep packed sequences apart without"):
        row_losses(model, batch, keys)
    # The twins compute what transformers' own reference does, which works in float32.
    sample = packed.samples[int(batch["sample_ids"][0])]
    ids = torch.tensor([sample.tokens])
    torch.testing.assert_close(model(input_ids=ids).logits, twin(input_ids=ids).logits, rtol=1e-3, atol=1e-3)


def test_the_numbers_are_those_of_the_collator(packed: Any) -> None:
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True, return_tensors="pt")
    for batch in PackedDataset(packed.path, 0, packed.num_gpus):
        if batch["sp_size"] == 1 and batch["pack_id"] >= 0:
            samples = [packed.samples[i].tokens for i in batch["sample_ids"].tolist()]
            wanted = collator([{"input_ids": tokens, "labels": tokens} for tokens in samples])
            assert batch["seq_idx"].dtype == wanted["seq_idx"].dtype == torch.int32
            assert torch.equal(batch["seq_idx"], wanted["seq_idx"])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_the_numbers_are_sliced_as_the_ids_are(packed: Any, sharding: Any) -> None:
    padded = 0
    for rank in range(packed.num_gpus):
        options = {"sp_sharding": sharding, "pad_to_multiple_of": 24}
        parts = PackedDataset(packed.path, rank, packed.num_gpus, **options)
        rows = PackedDataset(packed.path, rank, packed.num_gpus, sp_slice=False, **options)
        for part, row in zip(parts, rows, strict=True):
            borders = row["cu_seq_lens_q"]
            numbers = torch.arange(len(borders) - 1, dtype=torch.int32).repeat_interleave(borders.diff())
            assert torch.equal(row["seq_idx"], numbers[None])
            wanted = take_slice(row["seq_idx"], borders, row["sp_size"], row["sp_rank"], sharding)
            assert part["seq_idx"].shape == part["input_ids"].shape
            assert torch.equal(part["seq_idx"], wanted)
            padded += len(borders) - 1 > row["num_samples"] > 0 and row["sp_size"] > 1
    assert padded
