"""Chats and texts with weights, packed with tokens in the shards and with `--index-only`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run


def records(repo: Path) -> list[dict]:
    """Chats and texts: every third with a weight, and every fourth chat with weights of its messages."""
    chats = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    found = [json.loads(line) for line in chats]
    found += [{"text": f"A note about {name}, which is short."} for name in ("rain", "sun", "fog", "snow")]
    for number, record in enumerate(found):
        if number % 3 == 0:
            record["weight"] = 0.5
        if number % 4 == 1:
            for place, message in enumerate(record.get("messages", [])):
                if message["role"] == "assistant":
                    message["weight"] = [0, 2, 1.25][place % 3]
    return found


@pytest.fixture(scope="session")
def corpus(repo, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "weighted.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records(repo)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def pack(repo):
    """pack(INPUT or INPUTS, OUTPUT, OPTION...)"""

    def call(inputs: Path | list[Path], output: Path, *options: object) -> Done:
        paths = inputs if isinstance(inputs, list) else [inputs]
        done = run(
            main, "pack", *paths, "--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "256:1,1k:2",
            "--gpus", 4, "--global-tokens", "2k", "--workers", 1, *options, "--output", output,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        return done

    return call


@pytest.fixture(scope="session")
def weighted(corpus, pack, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("weighted") / "out"
    pack(corpus, output)
    return output


@pytest.fixture(scope="session")
def indexed(corpus, pack, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("indexed") / "out"
    pack(corpus, output, "--index-only")
    return output
