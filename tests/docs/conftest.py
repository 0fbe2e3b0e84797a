"""A folder that has what the pages name: corpora, a tokenizer, a model, lengths, a profile, a packed set."""

from __future__ import annotations

import gzip
import json
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
from tests.docs.python import WORLD_SIZE
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
LLAMA_1B = LLAMA_8B | {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192}
NUM_CHATS, NUM_JOURNALS = 150, 12


@pytest.fixture(scope="session")
def inputs(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the packed set; nothing changes it."""
    folder = tmp_path_factory.mktemp("inputs")
    sample = repo / "examples" / "sample"
    chats = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    journals = (sample / "journals.jsonl").read_text(encoding="utf-8").splitlines()
    texts = pa.table({"text": [json.loads(line)["text"] for line in journals]})
    (folder / "chats.jsonl").write_text("".join(chats[:NUM_CHATS]), encoding="utf-8")
    (folder / "new.jsonl").write_text("".join(chats[NUM_CHATS : NUM_CHATS + 20]), encoding="utf-8")
    (folder / "more").mkdir()
    for name, begin, stop in (("documents", 0, NUM_JOURNALS), ("books", 0, NUM_JOURNALS), ("more/late", -5, None)):
        pq.write_table(texts[begin:stop], folder / f"{name}.parquet")
    (folder / "path" / "to" / "model").mkdir(parents=True)
    (folder / "path" / "to" / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    (folder / "path" / "to" / "tokenizer").symlink_to(sample / "tokenizer")
    (folder / "TOKENIZER").symlink_to(sample / "tokenizer")
    (folder / "MODEL").mkdir()
    (folder / "MODEL" / "config.json").write_text(json.dumps(LLAMA_1B))
    (folder / "examples").symlink_to(repo / "examples")
    (folder / "schemas").symlink_to(repo / "schemas")
    (folder / "profile.json").write_text(profile_of(SETTINGS).model_dump_json())
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(6, 1, 3000), 1, 30_000).astype(np.int32)
    lengths[::40] = generator.integers(8_000, 30_000, len(lengths[::40]))
    np.save(folder / "LENGTHS.npy", lengths)
    return folder


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
    inputs: Path, packed: Path, tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Path]:
    """Makes the current folder one that is a page's own."""

    def make() -> Path:
        for path in (*inputs.iterdir(), *tokenized.iterdir()):
            (tmp_path / path.name).symlink_to(path)
        shutil.copytree(packed, tmp_path / "OUT")
        monkeypatch.chdir(tmp_path)
        # The pages name many tokenizers, and the server of workers starts anew for each.
        monkeypatch.setattr("packer_cli.stages.workers.default_workers", lambda: 1)
        return tmp_path

    return make


@pytest.fixture
def buckets(inputs: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the pages name in S3: a corpus, an empty bucket, and a packed set."""
    pytest.importorskip("moto.server")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    from packer_cli.engine.processes import end_servers

    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("packer_cli.remote.system._systems", {})
        end_servers()  # Workers have the environment of the process that they are forked from.
        forget_buckets()
        storage = fsspec.filesystem("s3", endpoint_url=server.url, key="key", secret="secret")
        for name in ("corpus", "sets", "bucket"):
            storage.mkdir(name)
        chats = (inputs / "chats.jsonl").read_bytes()
        storage.pipe("corpus/chats/chats.jsonl", chats)
        storage.pipe("corpus/books/books.jsonl.gz", gzip.compress(chats))
        storage.put(str(packed), "bucket/out", recursive=True)
        yield
    end_servers()
