"""A corpus of several parts that is quick to tokenize, and what an ordinary run makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run

PLAN = ("--groups", "512,8k:4", "--gpus", 8)
SHARD_SIZE = ("--shard-size", 80_000)
NUM_TASKS = 4


@pytest.fixture
def hbpack(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`hbpack ARGUMENTS` in this process, with these environment variables besides."""

    def call(*arguments: object, **environment: object) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, str(value))
            return run(main, *arguments)

    return call


@pytest.fixture(scope="session")
def corpus(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large file of five parts between small ones, and broken lines. Most bytes are of a field that nobody reads."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:300]
    padded = [json.dumps({**json.loads(line), "of_no_use": "x" * 80_000}) for line in lines]
    (folder / "a.jsonl").write_text("\n".join([*lines[:20], "broken"]), encoding="utf-8")
    (folder / "b.jsonl").write_text("\n".join([*padded[:199], "broken", *padded[199:]]), encoding="utf-8")
    texts = (repo / "examples" / "sample" / "journals.jsonl").read_text(encoding="utf-8").splitlines()[:100]
    (folder / "c.jsonl").write_text("\n".join(texts), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tokenize_words(repo: Path, corpus: Path) -> list[str]:
    tokenizer = repo / "examples" / "sample" / "tokenizer"
    return ["tokenize", str(corpus), "--tokenizer", str(tokenizer), "--workers", "1", "--output"]


@pytest.fixture(scope="session")
def plain(tokenize_words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, plan and set of ordinary runs."""
    out = tmp_path_factory.mktemp("plain") / "out"
    for words in ([*tokenize_words, out], ["plan", out, *PLAN], ["write", out, *SHARD_SIZE, "--workers", 1]):
        done = run(main, *words)
        assert done.code == 0, done.stderr
    return out
