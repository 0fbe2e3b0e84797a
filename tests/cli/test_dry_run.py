"""`hbpack pack --dry-run`: it writes nothing, and fails as a run does."""

from __future__ import annotations

import json

import jsonschema


def test_nothing_is_written_and_json(hbpack, repo, tokenizer, chats, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = ("pack", chats, "--tokenizer", tokenizer, "--groups", "1k", "--gpus", 4, "--workers", 2)
    done = hbpack(*words, "--output", tmp_path / "new/out", "--dry-run", "--json")
    assert (done.code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads((repo / "schemas/output/dry-run.schema.json").read_text()))
    assert (found["records"], found["workers"], found["sampled_bytes"]) == (40, 2, chats.stat().st_size)
    assert [run["machines"] for run in found["runs"]] == [1, 4, 16, 64]
    assert {run["requests"] for run in found["runs"]} == {0}
    text = hbpack(*words, "--output", tmp_path / "new/out", "--dry-run").stdout
    assert "predicted from a sample, and nothing was written" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_errors_are_those_of_a_run(hbpack, tokenizer, chats, lines_of, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/data.txt").write_text("mine")
    words = ("--tokenizer", tokenizer, "--workers", 1)
    bad = lines_of({"nothing": 1}, "bad", name="bad.jsonl")
    good = ("--groups", "1k", "--gpus", 2)
    for arguments, code in [
        ((chats, *good, "--output", tmp_path / "other"), 2),
        ((chats, *good, "--output", chats), 2),
        ((tmp_path / "nowhere.jsonl", *good, "--output", tmp_path / "out"), 2),
        ((chats, "--groups", "1k:3", "--gpus", 2, "--output", tmp_path / "out"), 2),
        ((chats, *good, "--date", "2026-01-01", "--output", tmp_path / "out"), 2),
    ]:
        done = hbpack("pack", *arguments, *words, "--dry-run")
        assert (done.code, done.stdout) == (code, "")
        assert done.stderr == hbpack("pack", *arguments, *words).stderr
    done = hbpack("pack", bad, *good, *words, "--output", tmp_path / "out", "--dry-run")
    assert done.code == 1
    assert done.stderr.startswith("error: no record of the sample can be used, most often as: ")
    assert not (tmp_path / "out").exists()
