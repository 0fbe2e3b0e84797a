"""Rows of Megatron's formats keep their capacity where the plan counted each sample's padding."""

from __future__ import annotations

import pytest

from packer_cli.cli.main import main
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.reference import read_packs

CAPACITIES = {0: 1024, 1: 8192}


def pack(repo, output, *options):
    sample = repo / "examples" / "sample"
    done = run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,8k:4", "--gpus", 4, "--workers", 1, "--output", output, *options,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


def row_lengths(folder, name, **options):
    """(group, tokens of the row) of each batch of rank 0."""
    with_group = [(batch["group"], batch) for batch in PackedDataset(folder, 0, 4, format=name, **options)]
    return [(group, batch["tokens"].shape[-1]) for group, batch in with_group]


@pytest.mark.parametrize("pad_to", ["multiple", "row", "capacity"])
@pytest.mark.parametrize("name", ["megatron", "megatron-thd"])
def test_rows_keep_their_capacity(repo, tmp_path, name, pad_to):
    found = row_lengths(pack(repo, tmp_path / "out", "--align", "2*cp"), name, pad_to=pad_to)
    assert {group for group, _ in found} == {0, 1}
    assert all(length <= CAPACITIES[group] for group, length in found)
    assert all(length % 8 == 0 for group, length in found if group == 1)
    if pad_to == "capacity":
        assert all(length == CAPACITIES[group] for group, length in found)


def test_rows_of_a_plan_without_outgrow_it(repo, tmp_path):
    """What the option is for; also guards the test above against passing vacuously."""
    found = row_lengths(pack(repo, tmp_path / "out"), "megatron")
    assert any(length > CAPACITIES[group] for group, length in found)


def test_a_number_aligns_rows_of_one_gpu_too(repo, tmp_path):
    folder = pack(repo, tmp_path / "out", "--align", "48", "--groups", "1008,8208:4")
    packs = read_packs(folder)
    ranks = [PackedDataset(folder, rank, 4, format="megatron") for rank in range(4)]
    degrees = set()
    for batch in (ranks[rank][i] for i in range(len(ranks[0])) for rank in range(4)):
        assert batch["cu_seqlens_padded"][0, -1] == batch["tokens"].shape[1] <= (1008, 8208)[batch["group"]]
        assert (batch["cu_seqlens_padded"] % 48 == 0).all()
        degrees.add(batch["sp_size"])
        if batch["pack_id"] < 0:
            continue
        pack_ = packs[batch["pack_id"]]
        borders, real = batch["cu_seqlens_padded"][0].tolist(), batch["cu_seqlens"][0].diff().tolist()
        for i, length in enumerate(real[: batch["num_samples"]]):
            first = int(pack_["cu_seqlens"][i])
            assert length == int(pack_["cu_seqlens"][i + 1]) - first
            row = batch["tokens"][0, borders[i] : borders[i] + length]
            assert row.tolist() == pack_["input_ids"][first : first + length].tolist()
            assert borders[i + 1] - borders[i] == -(-length // 48) * 48
    assert degrees == {1, 4}
