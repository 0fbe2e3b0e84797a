"""A URL is refused wherever it is not supported: as a path it would be a folder named `s3:`."""

from __future__ import annotations

import pytest

URL = "s3://bucket/out"
WRITES = f"error: {URL}: hbpack writes local files; name a local path, and upload what is there\n"
READS = f"error: {URL}: hbpack reads local files; download it first\n"
CORPUS = ("--tokenizer", "t")
PLAN = ("--groups", "1k", "--gpus", 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack", "a.jsonl", *CORPUS, *PLAN, "--output", URL], WRITES),
        (["tokenize", "a.jsonl", *CORPUS, "-o", URL], WRITES),
        (["plan", "out", *PLAN, "--output", URL], WRITES),
        (["export", "out", "--to", "trl", "--output", URL], WRITES),
        (["profile", "--model", "m", "--output", URL], WRITES),
        (["bench-loader", "out", "--cache-dir", URL], WRITES),
        (["plan", URL, *PLAN], READS),
        (["write", URL], READS),
        (["export", URL, "--to", "trl", "--output", "out"], READS),
        (["rebalance", URL, "--gpus", 4], READS),
        (["rebalance", "out", "--gpus", 4, "--state", URL], READS),
        (["stats", URL], READS),
        (["compare", URL, *PLAN], READS),
        (["compare", URL, *CORPUS, *PLAN], READS),
        (["groups", URL, "--gpus", 8, "--model", "m", "--gpu", "h100"], READS),
        (["simulate", URL, "--model", "m", "--gpu", "h100"], READS),
        (["profile", "--model", URL, "--output", "p.json"], READS),
    ],
)
def test_a_url_is_refused_and_nothing_written(hbpack, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert hbpack(*arguments) == (2, "", message)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_config_file_is_no_way_around(hbpack, tmp_path):
    (tmp_path / "c.yaml").write_text(f"inputs: a.jsonl\ntokenizer: t\ngroups: 1k\ngpus: 8\noutput: {URL}\n")
    assert hbpack("pack", "--config", tmp_path / "c.yaml") == (2, "", WRITES)
