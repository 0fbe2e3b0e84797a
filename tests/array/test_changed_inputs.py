"""Inputs that change while the tasks of an array run: the store is of one version, or there is none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.tokens.stage import StoreOutput
from tests.reference import tree

PLAIN = {"use_dictionary": False, "compression": "none", "write_statistics": False}


def shuffle(path: Path) -> None:
    """Other content of the same size, so that a listing of names and sizes is the same."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.take(list(range(len(table)))[::-1]), path, row_group_size=20, **PLAIN)
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[len(lines) // 2 :] + lines[: len(lines) // 2]))


@pytest.fixture
def changing(repo: Path, tmp_path: Path) -> Path:
    """A small file, and one of several parts in each of two formats."""
    folder = tmp_path / "changing"
    folder.mkdir()
    lines = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:100]
    records = [{"text": f"{number:03} {line:500.500}", "of_no_use": "x" * 90_000} for number, line in enumerate(lines)]
    (folder / "0.jsonl").write_text("".join(f"{line}\n" for line in lines[:9]))
    pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet", row_group_size=20, **PLAIN)
    (folder / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize(("name", "inputs"), [("0.jsonl", "[0a]*"), ("a.parquet", "[0a]*"), ("b.jsonl", "[0b]*")])
def test_tasks_that_read_another_version_run_again(hbpack, repo, changing, tmp_path, name, inputs):
    tokenizer, out = repo / "examples" / "sample" / "tokenizer", tmp_path / "out"
    words = ["tokenize", changing / inputs, "--tokenizer", tokenizer, "--workers", 1, "--output"]
    for index in (0, 1):
        assert hbpack(*words, out, "--shard", f"{index}/3").code == 0
    shuffle(changing / name)
    done = hbpack(*words, out, "--shard", "2/3")
    assert done.code == 1, done.stderr
    tasks = "task 0" if name == "0.jsonl" else "tasks 0, 1"
    assert done.stderr.splitlines()[-1] == (
        f"error: {changing / name}: the file has changed since {tasks} of the array read it; run {tasks} again once "
        "nothing writes to it"
    )
    assert not (out / "tokens" / "tokens.json").exists()
    missing = json.loads(hbpack("status", out, "--json").stdout)["stages"][0]["array"]["missing"]
    assert missing == [0] if name == "0.jsonl" else [0, 1]
    for index in missing:
        assert hbpack(*words, out, "--shard", f"{index}/3").code == 0
    assert hbpack(*words, tmp_path / "plain").code == 0
    assert tree(out) == tree(tmp_path / "plain")


def test_copies_of_a_node_are_the_same_files(hbpack, tokenize_words, corpus, plain, tmp_path):
    """Each task reads copies of its own, whose times and inodes differ."""
    out, words = tmp_path / "out", [*tokenize_words]
    data = words[words.index(str(corpus))] = str(tmp_path / "data")
    for index in range(4):
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(corpus, data)
        done = hbpack(*words, out, "--shard", f"{index}/4")
        assert done.code == 0, done.stderr
    assert "the token store is complete" in done.stderr
    store = {
        name: data.replace(str(tmp_path / "data").encode(), str(corpus).encode()) for name, data in tree(out).items()
    }
    assert {name for name in store if store[name] != tree(plain)[name]} == {"tokens/tokens.json"}  # Its checksum.


def test_inputs_that_are_gone_when_the_last_task_ends(hbpack, tokenize_words, corpus, tmp_path, monkeypatch):
    """What the tasks read is compared all the same."""
    complete = StoreOutput.complete
    out, words = tmp_path / "out", [*tokenize_words]
    data = words[words.index(str(corpus))] = str(tmp_path / "data")
    shutil.copytree(corpus, data)
    assert hbpack(*words, out, "--shard", "0/2").code == 0

    def remove(*arguments):
        shutil.rmtree(data)
        return complete(*arguments)

    monkeypatch.setattr(StoreOutput, "complete", remove)
    shuffle(Path(data) / "b.jsonl")
    assert hbpack(*words, out, "--shard", "1/2").code == 1
    assert json.loads(hbpack("status", out, "--json").stdout)["stages"][0]["array"]["missing"] == [0]


def test_a_touched_file_is_the_same(hbpack, tokenize_words, corpus, plain, tmp_path):
    out = tmp_path / "out"
    for index in range(2):
        for path in corpus.iterdir():
            os.utime(path)
        assert hbpack(*tokenize_words, out, "--shard", f"{index}/2").code == 0
    assert tree(out / "tokens") == tree(plain / "tokens")
