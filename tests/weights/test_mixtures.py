"""Inputs of which an epoch has a number of tokens, or a share of them: `PATH@10ktokens`, `PATH@70%`."""

import json

import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.shards.plan_file import read_plan
from packer_cli.tokens.store import open_store
from tests.cli_runner import run
from tests.reference import current_tree


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
    store = open_store(folder / "tokens")
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
    done = run(main, "append", first, inputs[1], "--workers", 2)
    assert done.code == 0, done.stderr
    assert current_tree(first) == current_tree(whole)
    assert "the set has this data already" in run(main, "append", first, inputs[1]).stderr


@pytest.fixture
def names(inputs):
    return [text.rpartition("@")[0] for text in inputs]


def epoch_of(folder):
    """Of each input: tokens of an epoch, and how often it has each sample."""
    pieces, store = read_plan(folder / "plan.arrow")[0].pieces, open_store(folder / "tokens")
    tokens = np.bincount(store.sources_of(pieces.sample), weights=pieces.length).astype(int).tolist()
    times = np.bincount(pieces.sample, minlength=len(store))
    return tokens, [times[store.sources() == number] for number in (0, 1)]


@pytest.mark.parametrize("more", [(), ("--validation", "20%")])
def test_shares_of_an_epoch(packed, names, more):
    folder, said = packed("out", (f"{names[0]}@70%", f"{names[1]}@30%"), "--workers", 1, *more)
    (first, second), times = epoch_of(folder)
    longest = int(open_store(folder / "tokens").lengths().max())
    assert abs(0.3 * (first + second) - second) <= longest
    is_whole = times[0] == 1
    assert is_whole.all() if not more else 0.5 < is_whole.mean() < 1  # All of the scarcer one, but for validation.
    assert times[1].max() == 1
    assert times[1].min() == 0
    assert "asked for" not in said
    manifest = json.loads((folder / "hbpack.json").read_bytes())
    assert [source["percent"] for source in manifest["sources"]] == [70.0, 30.0]
    got = [{name: each[name] for name in ("samples", "tokens")} for each in manifest["counts"]["inputs"]]
    assert got == [
        {"samples": int(count.sum()), "tokens": tokens} for count, tokens in zip(times, (first, second), strict=True)
    ]
    assert run(main, "verify", folder).code == 0
    again, _ = packed("again", (f"{names[0]}@70%", f"{names[1]}@30%"), "--workers", 2, *more)
    assert files(again) == files(folder)


def test_shares_stand_alone_and_sum_to_all(packed, names, repo, tmp_path):
    thirds, _ = packed("thirds", (f"{names[0]}@66.67%", f"{names[1]}@33.33%"))
    words = ("--tokenizer", repo / "examples" / "sample" / "tokenizer", "--output", tmp_path / "no")
    for shares, why in (
        (("70%", "29%"), "shares of an epoch's tokens must sum to 100 %, got 99 %"),
        (("70%", "1.0"), "give either each input a share of an epoch's tokens, as PATH@70%, or none"),
        (("70%", "30ktokens"), "give either each input a share of an epoch's tokens, as PATH@70%, or none"),
    ):
        some = [f"{name}@{share}" for name, share in zip(names, shares, strict=True)]
        assert run(main, "tokenize", *some, *words) == (2, "", f"error: INPUT: {why}\n")
    (tmp_path / "more.jsonl").write_text('{"text": "More."}\n')
    done = run(main, "append", thirds, f"{tmp_path}/more.jsonl@10%")
    assert (done.code, done.stderr) == (2, "error: INPUT: shares of an epoch's tokens must sum to 100 %, got 110 %\n")


def test_an_input_without_samples_has_no_share(names, repo, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    words = ("--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "1k", "--gpus", 1)
    done = run(main, "pack", f"{names[0]}@70%", f"{tmp_path}/bad.jsonl@30%", *words, "--output", tmp_path / "out")
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        "error: input 2 is to have 30% of an epoch's tokens, and has no samples; correct it, or leave it out"
    )


def test_what_an_epoch_has_of_each_input(packed, names, tmp_path):
    folder, _ = packed("out", (f"{names[0]}@0.5", names[1]))
    tokens, times = epoch_of(folder)
    written = run(main, "write", folder, "--json")
    found = json.loads(written.stdout)["inputs"]
    assert [(each["name"], each["samples"], each["tokens"]) for each in found] == [
        (name, int(count.sum()), number) for name, count, number in zip(names, times, tokens, strict=True)
    ]
    assert sum(each["share"] for each in found) == pytest.approx(1)
    lone, _ = packed("lone", names[:1])
    (only,) = json.loads(run(main, "write", lone, "--json").stdout)["inputs"]
    assert (only["name"], only["share"]) == (names[0], 1)


def test_many_inputs_take_six_lines(inputs, names, repo, tmp_path):
    lines = open(names[0], encoding="utf-8").readlines()  # noqa: SIM115
    some = [tmp_path / f"{number}.jsonl" for number in range(9)]
    for number, path in enumerate(some):
        path.write_text("".join(lines[: 4 * (number + 1)]), encoding="utf-8")
    words = ("--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "1k", "--gpus", 1)
    text = run(main, "pack", *some, *words, "--output", tmp_path / "out").stdout
    (table,) = [part for part in text.split("\n\n") if "4 others" in part]
    rows = [line.split() for line in table.splitlines()[2:]]
    assert [row[0] for row in rows[:5]] == [str(path) for path in reversed(some[4:])]
    assert rows[5][:3] == ["4", "others", str(4 * (1 + 2 + 3 + 4))]
    assert sum(float(row[-1].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.3)
