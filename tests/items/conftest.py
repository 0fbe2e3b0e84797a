"""Pairs with long prompts, conversations with a branch for each turn, and plain texts, in one set."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run

WORDS = ["rain", "sun", "fog", "snow", "wind", "ice", "hail", "storm", "cloud", "frost", "dew", "mist"]


def hbpack(*arguments: object) -> Done:
    return run(main, *arguments)


def text(number: int, generator: random.Random) -> str:
    return " ".join(generator.choices(WORDS, k=number))


def records(seed: int, number: int) -> list[dict[str, Any]]:
    """A third are pairs, a third conversations, a third texts; every fourth weighs half, and two are too long."""
    generator = random.Random(seed)
    found: list[dict[str, Any]] = []
    for k in range(number):
        if k % 3 == 0:
            answers = {name: text(generator.randint(1, 30), generator) for name in ("chosen", "rejected")}
            found.append({"prompt": text(generator.randint(1, 120), generator), **answers})
        elif k % 3 == 1:
            messages = [{"role": "user", "content": text(150, generator)}]
            for _ in range(generator.randint(1, 4)):
                messages.append({"role": "assistant", "content": text(generator.randint(1, 30), generator)})
                messages.append({"role": "user", "content": text(generator.randint(1, 20), generator)})
            found.append({"messages": messages[:-1]})
        else:
            found.append({"text": text(generator.randint(5, 60), generator)})
        if k % 4 == 0:
            found[-1]["weight"] = 0.5
    found[0]["rejected"] = text(1500, generator)
    for _ in range(8):
        found[1]["messages"] += [
            {"role": "user", "content": text(20, generator)},
            {"role": "assistant", "content": text(60, generator)},
        ]
    return found


def write_pairs(path: Path, seed: int, number: int) -> Path:
    generator = random.Random(seed)
    found = []
    for _ in range(number):
        prompt = text(generator.randint(60, 200), generator)
        answers = {name: text(generator.randint(1, 40), generator) for name in ("chosen", "rejected")}
        found.append({"prompt": prompt, **answers})
    path.write_text("".join(json.dumps(record) + "\n" for record in found), encoding="utf-8")
    return path


def write_texts(path: Path, seed: int = 0, number: int = 40) -> Path:
    generator = random.Random(seed)
    found = [{"text": text(generator.randint(5, 400), generator)} for _ in range(number)]
    path.write_text("".join(json.dumps(record) + "\n" for record in found), encoding="utf-8")
    return path


def write_records(path: Path, seed: int, number: int) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records(seed, number)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("items") / "records.jsonl", 0, 60)


@pytest.fixture(scope="session")
def words(repo: Path) -> list[object]:
    """The options of the set."""
    return [
        "--tokenizer", repo / "examples" / "sample" / "tokenizer", "--turns", "branch", "--groups", "1k:1,2k:2",
        "--gpus", 4, "--global-tokens", "4k", "--workers", 1, "--overflow", "truncate",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def packed(corpus: Path, words: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packed") / "out"
    done = hbpack("pack", corpus, *words, "--output", output)
    assert done.code == 0, done.stderr
    return output
