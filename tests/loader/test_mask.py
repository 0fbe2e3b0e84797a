"""A causal mask over whole rows, and positions that restart or run on: two switches of the loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.cli.main import main
from packer_cli.format.ranks import RankRow
from packer_cli.format.sharding import local_indices
from packer_cli.format.shards import Pack
from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.build_batch import BatchBuilder
from packer_cli.loader.formats.megatron import _real_borders
from packer_cli.loader.losses import sample_weights, token_losses
from tests.cli_runner import run
from tests.loader.flash_twin import install_flash_twin
from tests.loader.llama import tiny_llama
from tests.loader.packed_set import group_of
from tests.naive import loss_spans


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    sp_size=st.sampled_from([1, 2, 4]),
    sharding=st.sampled_from(["contiguous", "zigzag", "document"]),
    mask=st.sampled_from(["document", "causal"]),
    resets=st.booleans(),
    align=st.booleans(),
)
def test_the_switches_change_borders_and_positions_alone(
    lengths: list[int], seed: int, sp_size: int, sharding: Any, mask: Any, resets: bool, align: bool
) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 100, sum(lengths)).astype("uint16")
    marks = rng.integers(0, 2, len(ids)).tolist()
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of_samples(marks, lengths))
    pack = Pack(0, 0, ids, starts, stops, np.cumsum([0, *lengths]).astype(np.int32), np.arange(len(lengths)), 0)

    def build(sp_slice: bool, sp_rank: int, **switches: Any) -> Any:
        builder = BatchBuilder(
            pad_to="multiple", pad_to_multiple_of=5, pad_token_id=7, sp_slice=sp_slice,
            groups=(group_of(64, sp_size),),
            sp_sharding=sharding, align_samples=align and switches.get("mask") == "document", **switches,
        )  # fmt: skip
        of_row = {"place": sp_rank, "dp_size": 1, "row_length": 64}
        return builder.build(pack, RankRow(**dict.fromkeys(RankRow._fields, 0) | of_row), 0)

    switches = {"mask": mask, "reset_positions": resets}
    plain = build(False, 0, mask="document") if mask == "document" else build(False, 0)
    whole = build(False, 0, **switches)
    length = len(plain.input_ids)
    for key in ("input_ids", "labels", "shift_labels"):
        assert np.array_equal(getattr(whole, key), getattr(plain, key)), key
    assert whole.position_ids.tolist() == (plain.position_ids if resets else np.arange(length)).tolist()
    assert whole.sample_borders.tolist() == plain.cu_seqlens.tolist()
    assert whole.cu_seqlens.tolist() == (plain.cu_seqlens.tolist() if mask == "document" else [0, length])
    assert whole.max_seqlen == np.diff(whole.cu_seqlens).max()
    real = lengths if mask == "document" else [sum(lengths)]
    assert _real_borders(whole).diff().tolist() == real + [0] * (len(whole.cu_seqlens) - 1 - len(real))
    for rank in range(sp_size):
        part = build(True, rank, **switches)
        places = local_indices(whole.cu_seqlens, sp_size, rank, sharding)
        for key in ("input_ids", "position_ids", "labels", "shift_labels"):
            assert np.array_equal(getattr(part, key), getattr(whole, key)[places]), key


def batches(packed: Any, rank: int = 0, **options: Any) -> PackedDataset:
    return PackedDataset(packed.path, rank, packed.num_gpus, pad_to_multiple_of=5, **options)


def test_a_model_sees_the_whole_row(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' flash attention with the batch's borders against one plain causal forward."""
    install_flash_twin(monkeypatch)
    found = [
        (a, b)
        for a, b in zip(batches(packed, mask="causal", sp_slice=False), batches(packed, sp_slice=False), strict=True)
        if a["num_samples"] > 2
    ]
    causal, document = found[0]
    keys = ("input_ids", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    with torch.no_grad():
        plain = tiny_llama()(input_ids=causal["input_ids"]).logits
        model = tiny_llama("flash_twin")
        logits, apart = (model(**{key: batch[key] for key in keys}).logits for batch in (causal, document))
    torch.testing.assert_close(logits, plain, rtol=1e-10, atol=1e-10)
    assert (apart - plain).abs().max() > 1e-3
    assert torch.equal(causal["labels"], document["labels"])
    assert token_losses(logits, torch.nn.functional.pad(causal["labels"], (0, 1), value=-100)[..., 1:]).sum() > 0


@pytest.mark.parametrize("name", ["transformers", "flash-attn", "torchtitan", "megatron", "megatron-thd", "torchtune"])
def test_formats_give_the_row_as_one(packed: Any, name: str) -> None:
    for rank in range(packed.num_gpus):
        rows = batches(packed, rank, format=name, mask="causal")
        plain = batches(packed, rank, format=name)
        for i in range(0, len(rows), 5):
            known = metadata_of(rows[i])
            assert len(known["cu_seqlens"]) == 2
            if name == "torchtitan":
                inputs, labels = rows[i]
                assert inputs["positions"].tolist() == list(range(len(labels)))
            if name == "megatron":
                batch, real = rows[i], sum(len(packed.samples[s].tokens) for s in known["sample_ids"].tolist())
                row = int(known["cu_seqlens"][-1])
                assert batch["cu_seqlens"].tolist() == [[0, row if known["sp_size"] == 1 else real]]
            if not name.startswith("megatron"):  # Which pads samples apart where they are.
                wanted = sample_weights(plain[i], int(metadata_of(plain[i])["cu_seqlens"][-1]))
                assert torch.equal(sample_weights(rows[i], int(known["cu_seqlens"][-1])), wanted)


def test_fixed_borders_of_whole_rows(packed: Any) -> None:
    batch = batches(packed, mask="causal", max_segments="plan")[0]
    assert batch["cu_seq_lens_q"].tolist() == [0, batch["max_length_q"]]


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed"])
@pytest.mark.parametrize(("mask", "resets"), [("document", False), ("causal", True)])
def test_positions_that_are_the_borders_must_agree(packed: Any, name: str, mask: Any, resets: bool) -> None:
    with pytest.raises(ValueError) as error:
        batches(packed, format=name, mask=mask, reset_positions=resets)
    assert str(error.value) == (
        f"reset_positions is {resets} with mask {mask!r}, but trainers of format {name!r} take position 0 for the "
        f"start of a segment: leave reset_positions out, or choose mask {'document' if resets else 'causal'!r}"
    )


def test_an_unknown_mask_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError) as error:
        batches(packed, mask="prefix")
    assert str(error.value) == "mask is 'prefix': choose one of document, causal"


def test_the_loader_takes_the_mask_of_the_set(repo: Any, tmp_path: Any) -> None:
    sample = repo / "examples" / "sample"
    output = tmp_path / "out"
    done = run(
        main, "pack", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "1k", "--gpus", 2,
        "--mask", "causal", "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    own, documents = (PackedDataset(output, 0, 2, **options) for options in ({}, {"mask": "document"}))
    assert len(own[0]["cu_seq_lens_q"]) == 2 < len(documents[0]["cu_seq_lens_q"])
    assert own[0]["position_ids"].tolist() == [list(range(own[0]["input_ids"].shape[1]))]
    assert run(main, "verify", output).code == 0
