"""Small packed sets of the sample corpus, a small model, and the reference run over each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.examples.launcher import Launcher

NUM_CHATS, NUM_JOURNALS, JOURNAL_CHARACTERS = 38, 11, 840


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """The process that runs scripts."""
    found = Launcher()
    yield found
    found.close()


@pytest.fixture(scope="session")
def pack(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """A packed set of some of the sample, by groups, GPUs and more options: two epochs of few steps."""
    folder, sample = tmp_path_factory.mktemp("examples"), repo / "examples" / "sample"
    chats = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:NUM_CHATS]
    journals = (sample / "journals.jsonl").read_text(encoding="utf-8").splitlines()[:NUM_JOURNALS]
    beginnings = [json.dumps({"text": json.loads(line)["text"][:JOURNAL_CHARACTERS]}) for line in journals]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("\n".join([*chats, *beginnings, ""]), encoding="utf-8")

    @cache
    def make(groups: str, num_gpus: int, *options: str) -> Path:
        output = folder / "".join([groups.replace(":", "-"), str(num_gpus), *options]).replace("/", "-")
        done = run(
            main, "pack", corpus, "--tokenizer", sample / "tokenizer", "--groups", groups,
            "--gpus", num_gpus, "--global-tokens", 1600, "--epochs", 2, "--workers", 1, "--output", output,
            *options,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        return output

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_model(tmp_path_factory.mktemp("model"), 1)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with other weights."""
    return make_model(tmp_path_factory.mktemp("model"), 2)


def make_model(folder: Path, seed: int) -> Path:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,  # far from uniform, so that a wrong mask shows
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
