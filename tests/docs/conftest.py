"""What the pages name: corpora, a tokenizer, models, lengths, a profile, a packed set, all of them tiny."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.cost.test_measured import SETTINGS, profile_of
from tests.docs.blocks import linked_scripts, read_blocks
from tests.docs.installed import install_once
from tests.docs.namespace import WORLD_SIZE
from tests.examples.launcher import Launcher
from tests.s3_server import forget_buckets, s3_server

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8}
"""Of `MODEL`, which has weights. Degrees of the pages divide its layers and heads."""
NUM_CHATS, NUM_JOURNALS = 150, 12
TRAINS_EPOCHS = ("docs/train.md",)
NUM_TRAINED = {"chats.jsonl": 80, "books.parquet": 4}
"""Samples of the corpora of pages whose scripts train whole epochs."""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `hbpack`, `python` and `torchrun` are, for a reader who installed the wheel."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    return install_once(tmp_path_factory.getbasetemp().parent if shared else tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def launcher(programs: Path) -> Iterator[Launcher]:
    """Starts scripts as `torchrun` does, from a process that has imported the trainers and the wheel."""
    found = Launcher(programs / "python", python_path="")
    yield found
    found.close()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`MODEL`: a tiny one, with weights."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(vocab_size=1024, **TINY)).save_pretrained(folder)
    return folder


def _as_pair(chat: str) -> str:
    """A chat whose last message is preferred to half of it."""
    *prompt, last = json.loads(chat)["messages"]
    half = {**last, "content": last["content"][: len(last["content"]) // 2]}
    return json.dumps({"prompt": prompt, "chosen": [last], "rejected": [half]}) + "\n"


@pytest.fixture(scope="session")
def inputs(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that needs no hbpack; nothing changes it."""
    folder = tmp_path_factory.mktemp("inputs")
    sample = repo / "examples" / "sample"
    chats = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    journals = (sample / "journals.jsonl").read_text(encoding="utf-8").splitlines()
    texts = pa.table({"text": [json.loads(line)["text"] for line in journals]})
    (folder / "chats.jsonl").write_text("".join(chats[:NUM_CHATS]), encoding="utf-8")
    (folder / "preferences.jsonl").write_text("".join(map(_as_pair, chats[:NUM_CHATS])), encoding="utf-8")
    for number, name in enumerate(("new", "newest")):
        begin = NUM_CHATS + 20 * number
        (folder / f"{name}.jsonl").write_text("".join(chats[begin : begin + 20]), encoding="utf-8")
    (folder / "more").mkdir()
    for name, begin, stop in (("documents", 0, NUM_JOURNALS), ("books", 0, NUM_JOURNALS), ("more/late", -5, None)):
        pq.write_table(texts[begin:stop], folder / f"{name}.parquet")
    (folder / "path" / "to" / "model").mkdir(parents=True)
    (folder / "path" / "to" / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    (folder / "path" / "to" / "tokenizer").symlink_to(sample / "tokenizer")
    (folder / "TOKENIZER").symlink_to(sample / "tokenizer")
    (folder / "examples").mkdir()
    (folder / "examples" / "sample").symlink_to(sample)
    (folder / "profile.json").write_text(profile_of(SETTINGS).model_dump_json())
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(6, 1, 3000), 1, 30_000).astype(np.int32)
    lengths[::40] = generator.integers(8_000, 30_000, len(lengths[::40]))
    np.save(folder / "LENGTHS.npy", lengths)
    return folder


def _shorten(folder: Path) -> None:
    """Leave the first samples of the corpora in a folder."""
    chats, books = folder / "chats.jsonl", folder / "books.parquet"
    lines = chats.read_text(encoding="utf-8").splitlines(keepends=True)
    chats.write_text("".join(lines[: NUM_TRAINED[chats.name]]), encoding="utf-8")
    pq.write_table(pq.read_table(books)[: NUM_TRAINED[books.name]], books)


@pytest.fixture(scope="session")
def packed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`OUT`: a packed set of those corpora."""
    output = tmp_path_factory.mktemp("packed") / "OUT"
    done = run(
        main, "pack", inputs / "chats.jsonl", inputs / "documents.parquet", "--tokenizer", inputs / "TOKENIZER",
        "--groups", "1k:1,8k:2", "--gpus", WORLD_SIZE, "--global-tokens", "32k", "--epochs", 2, "--workers", 1,
        "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def tokenized(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus_text_document`, as Megatron's `preprocess_data.py` writes it."""
    folder, exported = tmp_path_factory.mktemp("megatron"), tmp_path_factory.mktemp("exported") / "all"
    done = run(main, "export", packed, "--to", "megatron", "--output", exported)
    assert done.code == 0, done.stderr
    for suffix in (".bin", ".idx"):
        (exported / f"tokens{suffix}").rename(folder / f"corpus_text_document{suffix}")
    return folder


@pytest.fixture
def scratch(
    request: pytest.FixtureRequest, repo: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Makes the current folder one that is a page's own, with what the page names and does not make itself."""

    def make(page: str) -> Path:
        code = "\n".join(block.source for block in read_blocks(page) if not block.reason)
        sources = {path.name: path for path in inputs.iterdir()}
        if "MODEL" in code:
            sources["MODEL"] = request.getfixturevalue("model_folder")
        if "corpus_text_document" in code:
            sources |= {path.name: path for path in request.getfixturevalue("tokenized").iterdir()}
        for name, path in sources.items():
            if re.search(rf"\b{re.escape(name.removesuffix('.bin').removesuffix('.idx'))}\b", code):
                shutil.copytree(path, tmp_path / name) if path.is_dir() else shutil.copy(path, tmp_path / name)
        if re.search(r"\bOUT\b", code) and not makes_set(code):
            shutil.copytree(request.getfixturevalue("packed"), tmp_path / "OUT", symlinks=True)
        if page in TRAINS_EPOCHS:
            _shorten(tmp_path)
        for name in linked_scripts(page):
            shutil.copy(repo / "examples" / name, tmp_path)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make


def makes_set(code: str) -> bool:
    """Whether `OUT` is an output where it is first named."""
    before = code.partition("OUT")[0]
    return re.search(r"(--output|-o) $", before) is not None


@pytest.fixture
def buckets(inputs: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the pages name in S3: a corpus, an empty bucket, and a packed set."""
    pytest.importorskip("moto.server")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        forget_buckets()
        storage = fsspec.filesystem("s3", endpoint_url=server.url, key="key", secret="secret")
        for name in ("corpus", "sets", "bucket"):
            storage.mkdir(name)
        chats = (inputs / "chats.jsonl").read_bytes()
        storage.pipe("corpus/chats/chats.jsonl", chats)
        storage.pipe("corpus/books/books.jsonl.gz", gzip.compress(chats))
        storage.put(str(packed), "bucket/out", recursive=True)
        yield


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Hugging Face Hub, of a user who is called USER."""
    pytest.importorskip("flask")
    from tests.hub_server import hub_server

    with hub_server() as server:
        for name, value in {**server.environment, "HF_HOME": str(tmp_path_factory.mktemp("hub"))}.items():
            monkeypatch.setenv(name, value)
        yield
