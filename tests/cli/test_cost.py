"""`--cost` from the command line to the shards: what is read, refused, reported and written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.conftest import GROUPS
from tests.reference import read_packs, tree

NEEDS = "--cost profile needs --model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    """Chats of at most a quarter of the capacity, and a few long documents."""
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, np.concatenate([generator.integers(64, 1024, 600), generator.integers(1024, 8192, 60)]))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The shape of a 7B model without grouped queries."""
    folder = tmp_path_factory.mktemp("model")
    shape = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--cost", "cubic"],
            "--cost: unknown cost 'cubic'; known: quadratic, profile, or two numbers A,B such as 1,24576",
        ),
        (["--cost", "0,1"], "--cost: cost A,B needs an A above 0 and a B of at least 0, got 0,1"),
        (["--cost", "profile"], NEEDS),
        (["--cost", "profile", "--gpu", "h100"], f"{NEEDS}; --model is missing"),
        (
            ["--cost", "1,5", "--groups", "2000000000"],
            (
                "--cost: with a linear term of 5 tokens, 8 packs of 2000000000 tokens may have more work than "
                "2^62, which is not counted exactly; give a smaller B, or shorter groups"
            ),
        ),
    ],
)
def test_a_wrong_cost(pack, chats, tmp_path, options, message):
    done = pack(chats, *options)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not (tmp_path / "out").exists()


def test_a_config_file_holds_it(hbpack, lengths, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("cost: 1,24576\n", encoding="utf-8")
    done = hbpack("stats", lengths, *GROUPS, "--config", config, "--json")
    assert done.stdout == hbpack("stats", lengths, *GROUPS, "--cost", "1,24576", "--json").stdout


def test_stats_tell_the_balance_of_the_cost_and_its_bound(hbpack, lengths):
    by_squares, by_cost = (
        json.loads(hbpack("stats", lengths, *GROUPS, *cost, "--json").stdout) for cost in ((), ("--cost", "1,24576"))
    )
    for part in (by_cost["overall"], by_cost["baseline"], *by_cost["groups"]):
        assert 0 <= part["cbr_bound"] <= part["cbr"] < 0.2
    assert by_cost["overall"]["cbr"] < 0.5 * by_cost["baseline"]["cbr"]
    assert not any("cbr" in part for part in (by_squares["overall"], by_squares["baseline"], *by_squares["groups"]))
    table = hbpack("stats", lengths, *GROUPS, "--cost", "1,24576").stdout
    assert "CBR: the same by --cost" in table
    assert "CBR" not in hbpack("stats", lengths, *GROUPS).stdout


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_by_a_cost(hbpack, lengths):
    rows = (*GROUPS, "--algorithms", "bfs,bfs/none,isf/sort")
    done = hbpack("compare", lengths, *rows, "--cost", "2,49152", "--sort", "cbr", "--columns", "all")
    assert done.code == 0
    assert "; groups 1k:1,8k:4 on 8 GPUs, cost 1,24576; packing bfs" in done.stdout
    assert "CBR bound" in done.stdout
    figures = json.loads(hbpack("compare", lengths, *rows, "--cost", "2,49152", "--sort", "cbr", "--json").stdout)
    ratios = [row["overall"]["cbr"] for row in figures["rows"]]
    assert ratios == sorted(ratios)
    refused = hbpack("compare", lengths, *rows, "--sort", "cbr")
    assert refused.code == 2
    assert refused.stderr == "error: --sort cbr needs a --cost, such as 1,24576; without one it is ABR\n"


def test_a_packed_set_holds_its_cost(hbpack, pack, chats, sample, tmp_path):
    inputs = (chats, sample / "journals.jsonl")
    assert pack(*inputs, "--cost", "0.5,1000").code == 0
    packs = read_packs(tmp_path / "out")
    assert len(packs) > 20
    for each in packs:
        assert each["attention_work"] == (np.diff(each["cu_seqlens"]).astype(np.int64) ** 2).sum()
        assert each["cost"] == 0.5 * each["attention_work"] + 1000 * each["num_tokens"]
    manifest = json.loads((tmp_path / "out" / "hbpack.json").read_text())
    assert manifest["config"]["plan"]["cost"] == "0.5,1000"
    assert "cbr" in manifest["metrics"]["overall"]
    assert "CBR: the same" in hbpack("stats", tmp_path / "out").stdout
    assert hbpack("rebalance", tmp_path / "out", "--gpus", 4).code == 0
    assert "cbr" in json.loads((tmp_path / "out" / "hbpack.json").read_text())["metrics"]["overall"]


def test_by_default_the_cost_is_attention_work(pack, chats, tmp_path):
    assert pack(chats).code == 0
    assert all(each["cost"] == each["attention_work"] for each in read_packs(tmp_path / "out"))


def test_a_profile_gives_numbers_and_they_decide_the_bytes(hbpack, pack, chats, model, tmp_path):
    predicted = ("--cost", "profile", "--model", model, "--gpu", "h100")
    assert pack(chats, *predicted).code == 0
    manifest = json.loads((tmp_path / "out" / "hbpack.json").read_text())
    cost = manifest["config"]["plan"]["cost"]
    quadratic, linear = map(float, cost.split(","))
    # By FLOPs alone the terms are equal at 6 h = 24,576 tokens (12 h with a causal mask).
    assert 24_576 < linear / quadratic < 2 * 49_152
    assert pack(chats, "--cost", cost, *predicted[2:], output=tmp_path / "numbers").code == 0
    assert tree(tmp_path / "numbers") == tree(tmp_path / "out")
    assert "the plan is up to date" in pack(chats, *predicted).stderr
    assert "CBR" in hbpack("stats", tmp_path / "out").stdout
