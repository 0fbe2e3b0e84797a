"""Inputs of which an epoch has a number of tokens: `PATH@10ktokens`."""

import json

import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.shards.plan_file import read_plan
from packer_cli.tokens.store import TokenStore
from tests.cli_runner import run


@pytest.fixture(scope="module")
def inputs(repo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    lines = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for number, name in enumerate(("a", "b")):
        (folder / f"{name}.jsonl").write_text("".join(lines[200 * number : 200 * (number + 1)]), encoding="utf-8")
    return f"{folder}/a.jsonl@10ktokens", f"{folder}/b.jsonl@50ktokens"


@pytest.fixture
def packed(repo, tmp_path, inputs):
    def call(name, *words):
        done = run(main, *words, "--output", tmp_path / name)
        assert done.code == 0, done.stderr
        return tmp_path / name, done.stderr

    options = ("--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "1k", "--gpus", 2)
    return lambda name, some=inputs, *more: call(name, "pack", *some, *options, *more)


def files(folder):
    paths = [*folder.rglob("*.arrow"), folder / "rejected.jsonl"]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def test_what_was_asked_for_and_what_came(packed, inputs):
    folder, said = packed("out", inputs, "--workers", 1)
    plan, _ = read_plan(folder / "plan.arrow")
    store = TokenStore.open(folder / "tokens")
    of_source = np.bincount(store.sources_of(plan.pieces.sample), weights=plan.pieces.length).astype(int).tolist()
    held = np.bincount(store.sources(), weights=store.lengths()).astype(int).tolist()
    longest = int(store.lengths().max())
    for name, asked, got, total in zip("ab", (10_000, 50_000), of_source, held, strict=True):
        assert 2 * abs(got - asked) <= longest
        path = inputs[0].rpartition("@")[0].removesuffix("a.jsonl") + f"{name}.jsonl"
        assert f"{path}: {got:,} tokens an epoch, {asked:,} asked for; the input has {total:,}\n" in said
    assert held[1] < 50_000 < 3 * held[1]  # Whole epochs and a part of one.
    assert json.loads((folder / "hbpack.json").read_bytes())["sources"][0]["tokens"] == 10_000
    assert run(main, "verify", folder).code == 0
    again, _ = packed("again", inputs, "--workers", 2)
    assert files(again) == files(folder)
    other, _ = packed("other", inputs, "--seed", 1)
    assert files(other) != files(folder)


def test_append_gives_the_same_as_packing_all(packed, inputs):
    whole, _ = packed("whole")
    first, _ = packed("first", inputs[:1])
    done = run(main, "append", first, inputs[1])
    assert done.code == 0, done.stderr
    assert files(first) == files(whole)
    assert "the set has this data already" in run(main, "append", first, inputs[1]).stderr
