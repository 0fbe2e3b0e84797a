"""What is refused before any work names the value, the rule and what to do instead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

GPU = ("--model", "config.json", "--gpu", "h100")
GROUPS = ("--groups", "1k:1", "--gpus", 1)
TOKENIZER = ("--tokenizer", Path(__file__).parents[3] / "examples" / "sample" / "tokenizer", *GROUPS, "-o", "out")
MODEL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
    "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
PROFILE = json.loads((Path(__file__).parents[2] / "groups" / "data" / "hbp-table-4.json").read_text())
LINEAR = [
    {
        "length": length, "checkpoint_layers": layers, "seconds": length / 1024 * (1 + layers / 64),
        "tokens": length, "memory_bytes": 10**9 + length * 1000 * (40 - layers),
    }
    for length in (1024, 2048, 4096) for layers in (0, 32)
]  # fmt: skip
"""Iterations in which attention takes no time."""
SQUARE = [{**row, "seconds": (row["length"] / 1024) ** 2 - row["length"] / 10240} for row in LINEAR]
"""Iterations in which attention takes all of the time."""

FILES = {
    "lengths.txt": "5\n7\n",
    "chats.jsonl": '{"text": "a"}\n',
    "list.yaml": "output: [a, b]",
    "sets.json": json.dumps({"chats": ["chats.json"]}),
    "config.json": json.dumps(MODEL),
    "long.txt": "5\n1000000\n",
    "short.json": json.dumps({**PROFILE, "iterations": PROFILE["iterations"][:2]}),
    "linear.json": json.dumps({**PROFILE, "iterations": LINEAR, "num_gpus": 1}),
    "square.json": json.dumps({**PROFILE, "iterations": SQUARE, "num_gpus": 1}),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    os.mkfifo(tmp_path / "pipe.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["init", "chats.jsonl", "--model", "s3://bucket/model", "--gpu", "h100"],
            "s3://bucket/model: this must be a local file or folder; name a local path",
        ),
        (["pack", "@2.0", *TOKENIZER], "@2.0: there is no path before the weight; write PATH@2.0"),
        (["pack", "pipe.jsonl", *TOKENIZER], "pipe.jsonl: not a regular file; write the data to a file first"),
        (
            ["pack", "chats.jsonl", *TOKENIZER, "--chat-template", "latin.txt"],
            "chat template latin.txt: the file is not UTF-8 text; save it as UTF-8",
        ),
        (
            ["pack", "chats.jsonl", *TOKENIZER, "--chat-template", "none.jinja"],
            (
                "chat template 'none.jinja' cannot be read (No such file or directory); give the path of a Jinja "
                "file, Jinja text with {% or {{ in it, or one of chatml, gemma3, llama3, llama3.1, mistral, phi3, "
                "qwen2.5, qwen3"
            ),
        ),
        (
            ["pack", "chats.jsonl", *TOKENIZER, "--chat-template", "{{ '\udce9' }}"],
            "chat template \"{{ '\\udce9' }}\" is not UTF-8 text; write it as UTF-8",
        ),
        (
            ["stats", "lengths.txt", *GROUPS, "--align", "x"],
            (
                "--align: 'x' must be a number of tokens, at least 1, such as 16, or N*cp for N times the SP or CP "
                "degree of each group, such as 2*cp; or several, such as 2*cp,32"
            ),
        ),
        (
            ["stats", "lengths.txt", "--strategy", "flexsp:all", "--groups", "1k:1,8k:16", "--gpus", 8, *GPU],
            "--gpus 8: the largest replicas have 16 GPUs; choose 16 or more, or plan with lower degrees",
        ),
        (
            ["stats", "lengths.txt", "--strategy", "wlb", "--gpus", 8, "--packing", "delay:micro_batches=-1"],
            "--packing: option 'micro_batches' must be at least 0 and at most 1048575, got -1",
        ),
        (
            ["stats", "lengths.txt", *GROUPS, "--cost", "profile", "--profile", "linear.json"],
            ("--cost profile: cost A,B needs an A above 0 and a B of at least 0, got 0,0.000976563; measure longer "
            "lengths with hbpack profile, or give --cost A,B"),
        ),
        (
            ["stats", "lengths.txt", "--strategy", "flexsp:all", *GROUPS, "--profile", "square.json"],
            ("--strategy flexsp:all needs the time of a token, and the rows of the profile give none besides that of "
            "attention; measure shorter lengths with hbpack profile, or give --model and --gpu"),
        ),
        (
            ["groups", "long.txt", "--gpus", 32, "--profile", "short.json", "--group-algorithm", "hbp"],
            ("the longest sample has 1,000,000 tokens, and the profile's rows go to 32,768 and are too few to predict "
            "others: measure longer ones with hbpack profile, or give --max-length"),
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
