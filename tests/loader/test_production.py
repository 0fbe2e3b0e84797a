"""The loader over what `hbpack pack` writes: a 32-GPU plan, all ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from packer_cli.cli.main import main
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.reference import expected_samples

NUM_GPUS = 32


def pack(repo, output, *options):
    sample = repo / "examples" / "sample"
    done = run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,2k:2,8k:8", "--gpus", NUM_GPUS, "--global-tokens", "64k", "--workers", 1,
        "--output", output, *options,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def packed(tmp_path_factory, repo):
    return pack(repo, tmp_path_factory.mktemp("loader") / "out")


@pytest.fixture(scope="module")
def expected(repo):
    sample = repo / "examples" / "sample"
    return expected_samples([sample / "chats.jsonl", sample / "journals.jsonl"], sample / "tokenizer")


def borders_of(batch):
    for name in ("cu_seq_lens_q", "cu_seqlens_q"):
        if name in batch:
            return batch[name].tolist()
    raise AssertionError(sorted(batch))


@pytest.mark.parametrize("name", ["transformers", "flash-attn"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_all_ranks_together_give_every_sample_once(packed, expected, name, epoch):
    assert check_all_ranks(packed, expected, name, epoch) == {1, 2, 8}


def test_iterations_of_mixed_degrees_give_every_sample_once(tmp_path, repo, expected):
    shape = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    packed = pack(
        repo, tmp_path / "out", "--strategy", "flexsp:all", "--model", tmp_path / "config.json", "--gpu", "h100"
    )
    assert {1, 8} <= check_all_ranks(packed, expected, "transformers", 0) <= {1, 2, 4, 8}
    ranks = [PackedDataset(packed, rank, NUM_GPUS) for rank in (0, NUM_GPUS - 1)]
    assert any(first["sp_size"] != last["sp_size"] for first, last in zip(*ranks, strict=True))
    assert run(main, "rebalance", packed, "--gpus", 7).stderr == (
        "error: --gpus 7: the largest replicas have 8 GPUs; choose 8 or more, or plan with lower degrees\n"
    )
    assert run(main, "rebalance", packed, "--gpus", 20).code == 0
    assert check_all_ranks(packed, expected, "transformers", 0, num_gpus=20) <= {1, 2, 4, 8}


def check_all_ranks(packed, expected, name, epoch, num_gpus=NUM_GPUS):
    """Every sample comes out once and whole; the SP degrees that were used."""
    found: dict[int, list[tuple[list[int], list[int]]]] = {}
    num_iterations, degrees = set(), set()
    for rank in range(num_gpus):
        data = PackedDataset(packed, rank, num_gpus, epoch=epoch, format=name, sp_slice=False)
        num_iterations.add(len(data))
        for batch in data:
            degrees.add(batch["sp_size"])
            if batch["sp_rank"] > 0 or batch["num_samples"] == 0:
                continue
            ids, labels = batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist()
            positions, borders = batch["position_ids"].flatten().tolist(), borders_of(batch)
            assert borders[-1] == len(ids) == len(labels) == len(positions)
            for i, sample in enumerate(batch["sample_ids"].tolist()):
                a, b = borders[i], borders[i + 1]
                assert positions[a:b] == list(range(b - a))
                assert labels[a] == -100
                found.setdefault(sample, []).append((ids[a:b], labels[a:b]))
            assert sum(label != -100 for label in labels) == batch["num_loss_tokens"]
    assert len(num_iterations) == 1
    assert sorted(found) == list(range(len(expected)))
    for sample, (ids, mask) in enumerate(expected):
        pieces = found[sample]
        if len(pieces) == 1:
            assert pieces[0][0] == ids
            wanted = [token if keep else -100 for token, keep in zip(ids, mask, strict=True)]
            assert pieces[0][1] == [-100, *wanted[1:]]
        else:
            assert sorted(token for piece, _ in pieces for token in piece) == sorted(ids)
    return degrees


def test_slices_of_a_group_make_up_the_pack(packed):
    """Every rank of an SP group gets its slice of the same pack; shifted labels are those of the whole."""
    ranks = [PackedDataset(packed, rank, NUM_GPUS) for rank in range(8)]
    whole = PackedDataset(packed, 0, NUM_GPUS, sp_slice=False)
    checked = 0
    for i in range(len(whole)):
        full = whole[i]
        degree = full["sp_size"]
        if degree == 1 or full["num_samples"] == 0:
            continue
        slices = [ranks[rank][i] for rank in range(degree)]
        assert {batch["pack_id"] for batch in slices} == {full["pack_id"]}
        for key in ("input_ids", "labels", "position_ids"):
            assert torch.equal(torch.cat([batch[key] for batch in slices], dim=1), full[key])
        shifted = torch.cat([batch["shift_labels"] for batch in slices], dim=1)
        assert torch.equal(shifted[:, :-1], full["labels"][:, 1:])
        assert shifted[0, -1] == -100
        checked += 1
    assert checked > 0


def test_steps_carry_the_counts_that_losses_need(packed):
    manifest = json.loads((packed / "hbpack.json").read_text())
    assert manifest["epochs"][0]["num_steps"] < manifest["epochs"][0]["num_iterations"]
    loss_tokens = np.zeros(manifest["epochs"][0]["num_steps"], dtype=int)
    promised = loss_tokens.copy()
    for rank in range(NUM_GPUS):
        for batch in PackedDataset(packed, rank, NUM_GPUS, sp_slice=False):
            promised[batch["step"]] = batch["global_num_loss_tokens"]
            if batch["sp_rank"] == 0:
                loss_tokens[batch["step"]] += batch["num_loss_tokens"]
    assert loss_tokens.tolist() == promised.tolist()
    assert loss_tokens.sum() == sum(group["num_loss_tokens"] for group in manifest["groups"])
