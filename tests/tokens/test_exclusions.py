"""`--exclude`: a part is as if its inputs had been without these records, in whatever order they were excluded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.tokens.exclusions import Exclusions, files_named
from packer_cli.tokens.index import read_index
from packer_cli.tokens.store import open_store
from tests.cli_runner import run
from tests.naive.content_hash import content_hash
from tests.reference import tree

LETTERS = "abcdefghijklmnop"


def text(number):
    return f"Record {number} says {LETTERS[number % 16] * 3} {number * number}. " * 3


def chat(number):
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {text(number)}"} for i in range(4)]
    return {"id": f"user-{number}", "messages": turns}


def weighted(number):
    return {"id": number, "text": text(number), "weight": (0.5, 1.0, 0.1)[number % 3]}


def pair(number):
    prompt = text(number) * 20  # Long enough to be shared.
    return {"id": number, "prompt": prompt, "chosen": f" yes {number}", "rejected": f" no {number}"}


FLAT = {"a.jsonl": [*map(chat, range(20))], "b.jsonl": [{"no": "use"}, *map(chat, range(20, 30))]}
WEIGHTED = {"a.jsonl": [*map(weighted, range(20))], "b.jsonl": [*map(weighted, range(20, 25)), {"text": text(5)}]}
PAIRS = {"a.jsonl": [*map(pair, range(6))], "b.jsonl": [*map(chat, range(4))]}
CASES = {
    "flat": (FLAT, (), ["a.jsonl:3", "id:user-21", "b.jsonl:9"], {("a.jsonl", 3), ("b.jsonl", 3), ("b.jsonl", 9)}),
    "weights": (WEIGHTED, (), ["id:7", "a.jsonl:1"], {("a.jsonl", 8), ("a.jsonl", 1)}),
    "pairs": (PAIRS, (), ["a.jsonl:2", "b.jsonl:1"], {("a.jsonl", 2), ("b.jsonl", 1)}),
    "all pairs": (PAIRS, (), [f"id:{k}" for k in range(6)], {("a.jsonl", line) for line in range(1, 7)}),
    "turns": (FLAT, ("--turns", "branch"), ["id:user-2", "id:user-25"], {("a.jsonl", 3), ("b.jsonl", 7)}),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path, monkeypatch):
    """Inputs in the current folder, options, entries and the lines that they mean."""
    monkeypatch.chdir(tmp_path)
    files, options, entries, lines = CASES[request.param]
    write_inputs(files)
    return files, options, entries, lines


def write_inputs(files, without=()):
    for name, records in files.items():
        lines = ["" if (name, i) in without else json.dumps(record) for i, record in enumerate(records, 1)]
        with open(name, "w") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture
def tokenize(repo):
    def call(out, *words, entries=None, code=0):
        if entries is not None:
            with open("remove.txt", "w") as file:
                file.write("\n".join(entries))
            words += ("--exclude", "remove.txt")
        tokenizer = repo / "examples" / "sample" / "tokenizer"
        done = run(
            main,
            "tokenize",
            "a.jsonl",
            "b.jsonl",
            "--tokenizer",
            tokenizer,
            "--keep-columns",
            "id",
            "--output",
            out,
            *words,
        )
        assert done.code == code, done.stderr
        return done.stderr

    return call


def store(folder):
    """The bytes of a store and of what the set remembers."""
    return tree(folder / "tokens") | {"excluded": (folder / "excluded.txt").read_bytes()}


OF_RECORDS = ("path", "fingerprint", "num_open", "num_with_special", "shapes", "unused", "warnings", "excluded")
"""Facts of a part that stay as they were read, or that follow from them."""


def test_a_part_is_that_of_inputs_without_the_records(case, tokenize, tmp_path):
    files, options, entries, lines = case
    tokenize(tmp_path / "plain", *options)
    said = tokenize(tmp_path / "out", *options, entries=entries)
    assert f"{len(lines)} of them excluded" in said
    assert "match no record" not in said
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert {(each["file"], each["line"]) for each in rejected if each["reason"] == "excluded"} == lines
    write_inputs(files, without=lines)
    tokenize(tmp_path / "naive", *options)
    (part,), (naive,) = (read_index(tmp_path / name / "tokens").parts for name in ("out", "naive"))
    if naive.columns == part.columns:
        assert (tmp_path / "out/tokens" / part.path).read_bytes() == (
            tmp_path / "naive/tokens" / naive.path
        ).read_bytes()
        assert {n: v for n, v in vars(part).items() if n not in (*OF_RECORDS, "files", "num_rejected")} == {
            n: v for n, v in vars(naive).items() if n not in (*OF_RECORDS, "files", "num_rejected")
        }
    assert [vars(file)[n] for file in part.files for n in ("num_samples", "num_tokens", "num_loss_tokens")] == [
        vars(file)[n] for file in naive.files for n in ("num_samples", "num_tokens", "num_loss_tokens")
    ]
    assert part.num_rejected == naive.num_rejected + len(lines)
    assert len(open_store(tmp_path / "out/tokens")) == naive.num_samples
    plain = (tmp_path / "plain/tokens" / read_index(tmp_path / "plain/tokens").parts[0].path).name
    assert not (tmp_path / "out/tokens" / plain).exists()


def test_the_order_of_exclusions_does_not_matter(case, tokenize, tmp_path):
    _, options, entries, _ = case
    tokenize(tmp_path / "at-once", *options, entries=entries)
    tokenize(tmp_path / "later", *options)
    tokenize(tmp_path / "later", *options, entries=entries[1:])
    tokenize(tmp_path / "later", *options, entries=entries[:1])
    assert store(tmp_path / "later") == store(tmp_path / "at-once")
    assert "\nreused " in tokenize(tmp_path / "later", *options)
    assert store(tmp_path / "later") == store(tmp_path / "at-once")


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Flat inputs in the current folder, each of them in a part of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("packer_cli.tokens.input_slices.GROUP_BYTES", 8000)
    write_inputs(FLAT)


def test_a_hash_is_of_the_tokens_of_all_copies(inputs, tokenize, tmp_path):
    write_inputs(FLAT | {"b.jsonl": [chat(2) | {"id": "copy"}, *map(chat, range(20, 30))]})
    tokenize(tmp_path / "out")
    store = open_store(tmp_path / "out/tokens")
    batch, _ = next(store.batches_of(np.ones(len(store), dtype=np.bool_)))
    number = content_hash(batch["input_ids"].row(2).tolist())
    assert "2 of them excluded" in tokenize(tmp_path / "out", entries=[f"hash:{number:016x}"])


def test_only_parts_with_these_records_are_written(inputs, tokenize, tmp_path):
    tokenize(tmp_path / "out")
    before = {part.path for part in read_index(tmp_path / "out/tokens").parts}
    said = tokenize(tmp_path / "out", entries=["a.jsonl:3", "a.jsonl:999", "id:nobody", "c.jsonl:1"])
    assert "3 of 4 entries match no record, or several files, such as a.jsonl:999, id:nobody, c.jsonl:1" in said
    after = {part.path for part in read_index(tmp_path / "out/tokens").parts}
    assert len(before) == len(after) == 2
    assert len(before & after) == 1
    assert "match no record" not in tokenize(tmp_path / "out", entries=["a.jsonl:3"])


def test_an_array_of_tasks_makes_the_same(inputs, tokenize, tmp_path):
    entries = ["b.jsonl:4", "id:user-3"]
    tokenize(tmp_path / "plain", entries=entries)
    for task in (1, 0):
        tokenize(tmp_path / "out", "--shard", f"{task}/2", entries=entries)
    assert store(tmp_path / "out") == store(tmp_path / "plain")
    assert "is complete" in tokenize(tmp_path / "out", "--shard", "1/2", entries=entries)
    tokenize(tmp_path / "other", "--shard", "0/2", entries=entries)
    assert "differ in --exclude" in tokenize(tmp_path / "other", "--shard", "1/2", entries=entries[:1], code=2)


@pytest.mark.parametrize("place", ["leave_out", "remember"])
def test_a_killed_run_goes_on(inputs, tokenize, tmp_path, monkeypatch, place):
    entries = ["b.jsonl:4", "id:user-3"]
    tokenize(tmp_path / "plain", entries=entries)
    tokenize(tmp_path / "out")
    method = getattr(Exclusions, place)

    def killed(self, *arguments):
        method(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Exclusions, place, killed)
    tokenize(tmp_path / "out", entries=entries, code=130)
    monkeypatch.setattr(Exclusions, place, method)
    tokenize(tmp_path / "out", entries=entries)
    assert store(tmp_path / "out") == store(tmp_path / "plain")


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (["chats"], "'chats' is not FILE:LINE, id:VALUE or hash:HASH; correct it"),
        ([":12"], "':12' is not FILE:LINE, id:VALUE or hash:HASH"),
        (["hash:12"], None),
        (["c.jsonl:1"], None),
    ],
)
def test_entries_are_checked_before_any_work(inputs, tokenize, tmp_path, entries, why):
    said = tokenize(tmp_path / "out", entries=entries, code=2 if why else 0)
    assert (why or "1 of 1 entries match no record, or several files") in said
    assert (tmp_path / "out/tokens").exists() == (why is None)


def test_a_column_by_which_records_are_excluded_stays(inputs, tokenize, tmp_path):
    tokenize(tmp_path / "out", entries=["id:user-1"])
    said = tokenize(tmp_path / "out", "--keep-columns", "messages", code=2)
    assert "records are excluded by their id; keep it, with --keep-columns id" in said


def test_a_file_that_has_changed_is_said(inputs, tokenize, tmp_path):
    tokenize(tmp_path / "out", entries=["a.jsonl:3"])
    write_inputs(FLAT | {"a.jsonl": [chat(99), *FLAT["a.jsonl"]]})
    assert "files with excluded lines are gone or have changed" in tokenize(tmp_path / "out")


@pytest.mark.parametrize("named", ["a.jsonl", "./a.jsonl", "b/../a.jsonl", "/data/a.jsonl", "a.jsonl/"])
@pytest.mark.parametrize("file", ["a.jsonl", "./a.jsonl", "/data/./a.jsonl"])
def test_a_file_is_found_however_its_path_is_written(named, file):
    assert files_named(named, ["aa.jsonl", file, "a.jsonl.gz"]) == [file]
    assert files_named("./x/a.jsonl", [file, "x//a.jsonl"]) == ["x//a.jsonl"]
