"""What a run that plans warns of, and what its last line says to do."""

from __future__ import annotations

import json

import pytest

from packer_cli.config.gpu_model import most_positions


def warnings_of(done):
    assert done.code == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("warning: ")]


def test_too_many_gpus_for_the_data(pack, hbpack, chats, tmp_path):
    """Forty conversations fill a few rows: most of 64 GPUs have little to do."""
    done = pack(chats, "--groups", "1k:1", "--gpus", 64)
    (line,) = [line.strip() for line in done.stdout.splitlines() if "warning" in line]
    counts = json.loads(hbpack("write", tmp_path / "out", "--json").stdout)["overall"]
    assert counts["pr"] > 0.2
    assert line == (
        f"warning: {counts['pr']:.0%} of the rows is padding: {counts['num_tokens']:,} tokens make 1 iteration on 64 "
        "GPUs; give fewer --gpus, shorter --groups, or more data"
    )
    assert "warning" not in pack(chats, "--groups", "1k:1", "--gpus", 1).stdout


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({}, None),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 2048, "rope_scaling": None}, 2048),
    ],
)
def test_positions_of_a_model(tmp_path, config, positions):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert most_positions(tmp_path) == positions


@pytest.mark.parametrize(("positions", "is_short"), [(700, True), (1024, False)])
def test_samples_over_the_positions_of_the_model(pack, lines_of, sample, tmp_path, positions, is_short):
    model = json.loads((sample / "model" / "config.json").read_text()) | {"max_position_embeddings": positions}
    (tmp_path / "config.json").write_text(json.dumps(model))
    words = ("--groups", "1k:1", "--gpus", 8, "--model", tmp_path / "config.json", "--gpu", "h100")
    found = warnings_of(pack(lines_of({"text": "good " * 5000}), *words))
    assert [line.split(";")[0] for line in found] == [
        f"warning: a sample has 1,024 tokens, and {tmp_path}/config.json has positions for 700"
    ] * is_short


@pytest.mark.parametrize(("more", "is_named"), [((), True), (("--groups", "1k:1", "--parallel", "tp=2"), False)])
def test_the_last_line_names_the_trainer(pack, chats, tmp_path, more, is_named):
    last = pack(chats, *more).stdout.splitlines()[-1]
    out = tmp_path / "out"
    assert f'or train with packer_cli.loader.PackedDataset("{out}", rank, 8)' in last
    assert (f'or with packed(Trainer)(model, args, train_dataset="{out}") as in docs/train.md' in last) == is_named


@pytest.mark.parametrize(
    ("words", "cannot"),
    [
        (("--groups", "1k:1"), None),
        (("--groups", "1k:1", "--parallel", "cp=2"), "share rows by context parallelism"),
        (
            ("--groups", "1k:1", "--parallel", "pp=2"),
            (
                "run pipelines, or keep its weights on each replica, and run as many micro-batches there as it has "
                "(DDP, ZeRO-1)"
            ),
        ),
    ],
)
def test_plans_that_the_named_trainer_cannot_run(pack, chats, words, cannot):
    found = warnings_of(pack(chats, *words, "--gpus", 8, "--trainer", "trl"))
    assert [line for line in found if "--trainer" in line] == (
        [f"warning: --trainer trl cannot {cannot}"] if cannot else []
    )
    assert not [line for line in warnings_of(pack(chats, *words, "--gpus", 8)) if "--trainer" in line]
