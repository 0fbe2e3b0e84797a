"""One corpus packed twice: with tokens in the shards, and with `--index-only`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run


def pack(repo: Path, output: Path, *options: object) -> Done:
    sample = repo / "examples" / "sample"
    return run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,8k:4", "--gpus", 8, "--overflow", "split", "--shard-size", "300kB", "--workers", 1,
        *options, "--output", output,
    )  # fmt: skip


@pytest.fixture(scope="session")
def written(repo, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("written") / "out"
    assert pack(repo, output).code == 0
    return output


@pytest.fixture(scope="session")
def indexed(repo, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("indexed") / "out"
    done = pack(repo, output, "--index-only")
    assert done.code == 0, done.stderr
    return output


@pytest.fixture
def own(indexed, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(indexed, tmp_path / "own", symlinks=True))
