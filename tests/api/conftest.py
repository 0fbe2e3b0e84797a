"""What the tests of the API share: lengths, a packed set made by it, and the command line to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from tests.cli_runner import Done, run

GROUPS = {"groups": "1k:1,8k:4", "gpus": 8}
MODEL = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
MODEL |= {"num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000}


@pytest.fixture(scope="session")
def lengths() -> np.ndarray:
    """800 lengths, some over the longest group."""
    generator = np.random.default_rng(0)
    values = np.clip(generator.lognormal(5, 1.2, 800), 1, 7000).astype(np.int32)
    values[::100] = 9000
    return values


@pytest.fixture(scope="session")
def sample(repo: Path) -> Path:
    return repo / "examples" / "sample"


@pytest.fixture(scope="session")
def corpus(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred conversations."""
    path = tmp_path_factory.mktemp("inputs") / "chats.jsonl"
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        path.write_text("".join(next(file) for _ in range(100)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def packed(corpus: Path, sample: Path, tmp_path_factory: pytest.TempPathFactory) -> hbpack.PackedSet:
    """That corpus, packed."""
    output = tmp_path_factory.mktemp("packed") / "out"
    return hbpack.pack(corpus, output=output, tokenizer=sample / "tokenizer", workers=1, **GROUPS)


@pytest.fixture
def command() -> Callable[..., Done]:
    """`hbpack ARGUMENTS` in this process."""
    return lambda *arguments: run(main, *arguments)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model's config."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder
