"""What the command line's tests share: small inputs, and the command line run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run

GROUPS = ("--groups", "1k:1,8k:4", "--gpus", 8)


@pytest.fixture(scope="session")
def sample(repo) -> Path:
    return repo / "examples" / "sample"


@pytest.fixture(scope="session")
def tokenizer(sample) -> Path:
    return sample / "tokenizer"


@pytest.fixture(scope="session")
def chats(sample, tmp_path_factory) -> Path:
    """Forty conversations."""
    path = tmp_path_factory.mktemp("inputs") / "chats.jsonl"
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        path.write_text("".join(next(file) for _ in range(40)), encoding="utf-8")
    return path


@pytest.fixture
def hbpack() -> Callable[..., Done]:
    """`hbpack ARGUMENTS` in this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> Done:
        return run(main, *arguments)

    return call


@pytest.fixture
def pack(hbpack, tokenizer, tmp_path) -> Callable[..., Done]:
    """`hbpack pack ARGUMENTS` into tmp_path/out with usual options, which the arguments override."""

    def call(*arguments: object, output: Path = tmp_path / "out") -> Done:
        return hbpack(
            "pack", "--tokenizer", tokenizer, *GROUPS, "--workers", 1, "--output", output, *arguments
        )  # fmt: skip

    return call


@pytest.fixture
def lines_of(tmp_path) -> Callable[..., Path]:
    """A JSON-lines file of values, or of lines as they are (str, bytes)."""

    def make(*lines: Any, name: str = "lines.jsonl") -> Path:
        path = tmp_path / name
        texts = [line if isinstance(line, (bytes, str)) else json.dumps(line) for line in lines]
        path.write_bytes(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts))
        return path

    return make


def rejected(folder: Path) -> list[tuple[str, int, str]]:
    """(file name, line, reason) of each line of rejected.jsonl."""
    text = (folder / "rejected.jsonl").read_bytes().decode()
    entries = [json.loads(line) for line in text.split("\n") if line]
    return [(Path(entry["file"]).name, entry["line"], entry["reason"]) for entry in entries]
