"""What is refused before any work names the value, the rule and what to do instead."""

from __future__ import annotations

import json
import os

import pytest

GPU = ("--model", "config.json", "--gpu", "h100")
GROUPS = ("--groups", "1k:1", "--gpus", 1)
MODEL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
    "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
FILES = {
    "lengths.txt": "5\n7\n",
    "chats.jsonl": '{"text": "a"}\n',
    "list.yaml": "output: [a, b]",
    "sets.json": json.dumps({"chats": ["chats.json"]}),
    "config.json": json.dumps(MODEL),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["report", "lengths.txt", "-o", "s3://bucket/report.html"],
            "s3://bucket/report.html: hbpack writes local files; name a local path, and upload what is there",
        ),
        (
            ["init", "chats.jsonl", "--model", "s3://bucket/model", "--gpu", "h100"],
            "s3://bucket/model: hbpack reads local files; download it first",
        ),
        (["pack", "--config", "list.yaml"], "config file 'list.yaml': output must be a single value, got ['a', 'b']"),
        (["simulate", *GPU], "INPUT is required"),
        (
            ["simulate", "chats.jsonl", "lengths.txt", *GPU],
            "several inputs are a corpus, which needs --tokenizer, --groups and --gpus",
        ),
        (
            ["simulate", "lengths.txt", *GPU],
            "'lengths.txt' is not a packed data set or plan; give --groups and --gpus to plan it in every way",
        ),
        (["compare", *GROUPS], "INPUT is required"),
        (["compare", "chats.jsonl", "lengths.txt", *GROUPS], "several inputs are a corpus, which needs --tokenizer"),
        (
            ["report", "lengths.txt", "--balance", "none", "--gpus", 2],
            "--gpus is for planning lengths, which also needs --groups; give it, or leave --gpus out",
        ),
        (
            ["stats", "lengths.txt", "--fill", "greedy"],
            "--fill is for planning lengths, which needs --groups and --gpus; give them, or leave --fill out",
        ),
        (
            ["init", "--from", "sets.json"],
            '--from: data set \'chats\' must be an object such as {"file_name": "chats.json"}, got ["chats.json"]',
        ),
    ],
)  # fmt: skip
def test_what_is_refused_at_once(hbpack, place, arguments, message):
    before = sorted(place.iterdir())
    done = hbpack(*arguments)
    assert (done.code, done.stdout, done.stderr.splitlines()[-1]) == (2, "", f"error: {message}")
    assert sorted(place.iterdir()) == before


def test_a_file_in_a_folder_that_cannot_be_written_to(hbpack, place, monkeypatch):
    """Root may write everywhere, so the answer of the system is replaced."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    for option, arguments in (
        ("--output", ["report", "lengths.txt", "-o", "report.html"]),
        ("--trace", ["simulate", "lengths.txt", *GPU, "--trace", "trace.json"]),
    ):
        message = f"{option}: '{arguments[-1]}' is in a folder that cannot be written to; name a file in another"
        assert hbpack(*arguments) == (2, "", f"error: {message}\n")
