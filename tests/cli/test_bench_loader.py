"""`hbpack bench-loader`: every row is there, and its figures are those of the batches that it read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import fsspec
import jsonschema
import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run

pytest.importorskip("torch")

GROUPS = ("g0-512-sp1", "g1-2048-sp4")
SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "bench-loader.schema.json"


@pytest.fixture(scope="module")
def packed(sample, tokenizer, chats, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "out"
    done = run(
        main, "pack", chats, sample / "journals.jsonl", "--tokenizer", tokenizer, "--groups", "512:1,2k:4",
        "--gpus", 4, "--workers", 1, "-o", folder,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return folder


def figures_of(*arguments):
    done = run(main, "bench-loader", *arguments, "--json")
    assert (done.code, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    jsonschema.validate(figures, json.loads(SCHEMA.read_text()))
    return figures


def test_a_row_for_each_group_and_number_of_workers(packed):
    from packer_cli.loader import PackedDataset, metadata_of

    figures = figures_of(packed, "--workers", "0,2", "--batches", 7, "--rank", 1)
    names = ("all, in order", *GROUPS)
    assert [(row["workers"], row["name"]) for row in figures["rows"]] == [(k, name) for k in (0, 2) for name in names]
    dataset = PackedDataset(packed, 1, 4)
    lengths = [dataset[i]["input_ids"].numel() for i in range(len(dataset))]
    groups = [metadata_of(dataset[i])["group"] for i in range(len(dataset))]
    for row in figures["rows"]:
        assert row["num_batches"] == 7
        assert row["batches_per_second"] == pytest.approx(1 / row["seconds_per_batch"])
        assert row["tokens_per_second"] == pytest.approx(row["tokens_per_batch"] * row["batches_per_second"])
        group = GROUPS.index(row["name"]) if row["name"] in GROUPS else None
        read = [length for length, other in zip(lengths, groups, strict=True) if group in (None, other)][:64]
        # The first batch of workers also waits for their start, and is told apart.
        first = 1 if row["workers"] else 0
        assert row["tokens_per_batch"] == sum((read * 8)[first : first + 7]) / 7
        assert (row["floor_seconds_per_batch"] is None) == (row["workers"] > 0 and group is None)
        assert row["seconds_per_batch"] > 0
    assert [entry["workers"] for entry in figures["workers"]] == [0, 2]
    assert figures["workers"][1]["first_batch_seconds"] > figures["workers"][0]["first_batch_seconds"] > 0
    if sys.platform == "linux":
        assert figures["workers"][0]["worker_bytes"] is None
        assert figures["workers"][1]["worker_bytes"] > 0
    assert (figures["rank"], figures["num_gpus"], figures["format"]) == (1, 4, "transformers")


def test_the_seconds_are_kept_to(packed):
    short, long = (figures_of(packed, "--seconds", seconds)["rows"][1]["num_batches"] for seconds in (0.02, 0.4))
    assert long > 3 * short > 0


@pytest.mark.parametrize("name", ["flash-attn", "deepspeed", "torchtitan", "megatron"])
def test_every_format(packed, name):
    from packer_cli.loader import PackedDataset

    figures = figures_of(packed, "--batches", 1, "--format", name, "--workers", "0,1")
    dataset = PackedDataset(packed, 0, 4, format=name)
    batches = [batch[0] if name == "torchtitan" else batch for batch in (dataset[0], dataset[1])]
    key = {"torchtitan": "input", "megatron": "tokens"}.get(name, "input_ids")
    # The first batch of workers also waits for their start, and is told apart.
    in_order = [row["tokens_per_batch"] for row in figures["rows"] if row["name"] == "all, in order"]
    assert in_order == [batch[key].numel() for batch in batches]


def test_the_table(packed):
    done = run(main, "bench-loader", packed, "--workers", "0,1", "--batches", 3)
    assert (done.code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Loader speed: format transformers, rank 0 of 4, torch ")
    assert lines[2].split("  ")[0].strip() == "group workers" or "to the floor" in lines[2]
    rows = [line for line in lines if line.lstrip().startswith(("all,", "g0-", "g1-"))]
    assert len(rows) == 6
    assert all(" x" in row for row in rows if not row.lstrip().startswith("all, in order        1"))
    assert sum(line.startswith("  opened in ") for line in lines) == 1
    assert any(line.startswith("  no workers: first batch after ") for line in lines)
    assert any(line.startswith("  1 worker: first batch after ") for line in lines)


def test_a_remote_set_is_fetched_into_a_folder_that_goes_again(packed, tmp_path):
    system = fsspec.filesystem("memory")
    root = f"/bench-{uuid4().hex}"
    system.put(str(packed), root, recursive=True)
    try:
        figures = figures_of(f"memory:/{root}", "--batches", 5, "--cache-dir", tmp_path / "cache")
    finally:
        system.rm(root, recursive=True)
    assert [row["name"] for row in figures["rows"]] == ["all, in order, uncached", *GROUPS]
    assert figures["is_remote"]
    assert [*(tmp_path / "cache").iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", 4], "--rank must be from 0 to 3, got 4: the set is for 4 GPUs"),
        (
            ["--format", "jax"],
            (
                "--format: unknown batch format 'jax'; known: "
                "transformers, flash-attn, torchtitan, megatron, megatron-thd, deepspeed, torchtune"
            ),
        ),
        (["--workers", "0,x"], "--workers: '0,x' is not a list of numbers from 0 to 999; write for example 0,2,4"),
        (["--workers", "-1"], "--workers: '-1' is not a list of numbers from 0 to 999; write for example 0,2,4"),
        (
            ["--seconds", 0],
            "invalid value for '--seconds': 0.0 is not in the range 0<x<=3600; see hbpack bench-loader --help",
        ),
    ],
)
def test_a_wrong_option(packed, arguments, message):
    done = run(main, "bench-loader", packed, *arguments)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_no_set(tmp_path):
    done = run(main, "bench-loader", tmp_path)
    assert (done.code, done.stderr) == (
        2,
        f"error: {str(tmp_path)!r} holds no packed data set (no hbpack.json); run hbpack pack\n",
    )


def test_without_torch(packed):
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from packer_cli.cli.main import main\n"
        f"sys.argv = ['hbpack', 'bench-loader', {str(packed)!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "error: this command needs torch: pip install 'hbpack[torch]'\n",
    )
