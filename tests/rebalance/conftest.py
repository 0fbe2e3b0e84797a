"""A packed set to rebalance."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run


@pytest.fixture(scope="module")
def planned(tmp_path_factory, repo) -> Path:
    """A set for 4 GPUs, degrees 1 and 2, two epochs, several iterations a step."""
    root = tmp_path_factory.mktemp("rebalance")
    sample = repo / "examples" / "sample"
    chats = root / "chats.jsonl"
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        chats.write_text("".join(next(file) for _ in range(300)), encoding="utf-8")
    done = run(
        main, "pack", chats, "--tokenizer", sample / "tokenizer", "--groups", "512:1,2k:2", "--gpus", 4, "--epochs", 2,
        "--global-tokens", "6k", "--shard-size", "64KiB", "--output", root / "out", "--workers", 1,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return root / "out"


@pytest.fixture
def out(planned, tmp_path) -> Path:
    return Path(shutil.copytree(planned, tmp_path / "out", symlinks=True))
