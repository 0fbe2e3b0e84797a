"""Conversations that NeMo-RL reads, and sets of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli.cli.main import main
from tests.cli_runner import Done, run
from tests.export.conftest import IDENTITY

Messages = list[dict[str, str]]


def good(number: int = 0) -> Messages:
    return [
        {"role": "system", "content": "Be brief." if number % 2 else ""},
        {"role": "user", "content": f"What is {number} and {number}?"},
        {"role": "assistant", "content": f"It is {2 * number}. " * (1 + number % 7)},
    ]


def turns(*roles: str) -> Messages:
    return [{"role": role, "content": f"{role} says"} for role in roles]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def pack(repo: Path, output: Path, *words: object, template: str | None = IDENTITY) -> Path:
    """A set of one group of 1k, packed as NeMo-RL's prompt format `identity` needs it."""
    of_template = ["--chat-template", template, "--append-eos", "never", "--loss-on", "all"] if template else []
    done = run(
        main, "pack", *words, "--tokenizer", repo / "examples" / "sample" / "tokenizer", *of_template,
        "--gpus", 2, "--workers", 1, "--output", output, *([] if "--groups" in words else ["--groups", "1k"]),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


def refused(done: Done, message: str, output: Path) -> None:
    error = done.stderr.splitlines()[-1]
    assert (done.code, error) == (2, f"error: {message}")
    assert not output.exists()


def split(messages: Messages) -> list[Messages]:
    found: list[Messages] = []
    for message in messages:
        if message["role"] == "system":
            found.append([])
        found[-1].append(message)
    return found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """As `load_dataset_from_path` opens the pattern that the command prints."""
    import datasets

    rows = datasets.load_dataset("json", data_files=f"{folder}/part-*.jsonl", split="train", cache_dir=f"{folder}.hf")
    assert rows.column_names == ["messages"]
    return list(rows)
