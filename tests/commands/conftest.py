"""A packed set with a validation set."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run

GROUPS = ("--groups", "256:1,1k:4", "--gpus", 8)
NUM_CHATS = 300


@pytest.fixture(scope="module")
def sample(repo) -> Path:
    return repo / "examples" / "sample"


@pytest.fixture(scope="module")
def chats(sample, tmp_path_factory) -> Path:
    """Chats, of which a line is broken and the first ten are there twice."""
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        lines = [next(file) for _ in range(NUM_CHATS)]
    path = tmp_path_factory.mktemp("validation") / "chats.jsonl"
    path.write_text("".join([*lines[:50], "broken\n", *lines[50:], *lines[:10]]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pack(sample):
    def call(output: Path, *arguments: object, code: int = 0):
        done = run(
            main, "pack", "--tokenizer", sample / "tokenizer", *GROUPS, "--workers", 1, "--output", output, *arguments
        )  # fmt: skip
        assert done.code == code, done.stderr
        return done

    return call


@pytest.fixture(scope="module")
def packed(chats, pack, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(out, chats, "--validation", "10%")
    return out


@pytest.fixture
def out(packed, tmp_path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "out", symlinks=True))
