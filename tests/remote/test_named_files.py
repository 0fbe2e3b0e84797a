"""Tokenizers, config files and pages behind URLs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from packer_cli.remote.path import RemotePath
from packer_cli.report.page import MARK
from packer_cli.tokens.tokenizer import remote
from tests.remote.conftest import tree, upload

PLANNED = ("--groups", "1k:1,8k:4", "--gpus", 8)


@pytest.fixture(autouse=True)
def new_process(monkeypatch, tmp_path):
    """A cache of its own, and no memory of tokenizers."""
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))
    remote.copy_of.cache_clear()


@pytest.fixture
def far() -> RemotePath:
    return RemotePath(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def chats(repo, tmp_path) -> Path:
    lines = (repo / "examples/sample/chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "chats.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    return tmp_path / "chats.jsonl"


def copies(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer/tokenizer.json"])
def test_a_tokenizer_is_fetched_once(far, hbpack, repo, chats, tmp_path, name):
    local = repo / "examples/sample"
    upload(local / "tokenizer", far / "tokenizer")
    (far / "tokenizer" / "model.safetensors").write_bytes(b"weights")
    url = far / name
    for tokenizer, output in ((local / name, "near"), (url, "far"), (url, "again")):
        done = hbpack("pack", chats, "--tokenizer", tokenizer, *PLANNED, "--output", tmp_path / output)
        assert done.code == 0, done.stderr
        remote.copy_of.cache_clear()
    shards = [
        {path: data for path, data in tree(tmp_path / output).items() if "/shards/" in path}
        for output in ("near", "far", "again")
    ]
    assert shards[0]
    assert shards[0] == shards[1] == shards[2]
    fetched = copies(tmp_path)
    assert [path.name for path in fetched] == sorted(path.name for path in (local / "tokenizer").iterdir())
    assert len({path.parent for path in fetched}) == 1
    done = hbpack("show", tmp_path / "far", "--sample", 0)
    assert done.stdout == hbpack("show", tmp_path / "near", "--sample", 0).stdout.replace("near", "far")


def test_another_version_is_another_copy(far, hbpack, repo, chats, tmp_path):
    upload(repo / "examples/sample/tokenizer", far)
    words = ("tokenize", chats, "--tokenizer", far, "--output")
    assert hbpack(*words, tmp_path / "first").code == 0
    number = len(copies(tmp_path))
    config = json.loads((far / "tokenizer_config.json").read_bytes())
    config["chat_template"] = "!" + config["chat_template"]
    (far / "tokenizer_config.json").write_bytes(json.dumps(config).encode())
    remote.copy_of.cache_clear()
    done = hbpack(*words, tmp_path / "first")
    assert done.code == 0, done.stderr
    assert "tokenized 30 records" in done.stderr
    assert len(copies(tmp_path)) == 2 * number


def test_a_tokenizer_that_is_not_there(far, hbpack, chats, tmp_path):
    done = hbpack("tokenize", chats, "--tokenizer", far / "tokenizer", "--output", tmp_path / "out")
    assert done.code == 2
    assert done.stderr.startswith(f"error: {far}/tokenizer: no such file or folder; a tokenizer is a folder with ")
    assert not (tmp_path / "out").exists()


def test_workers_fetch_a_tokenizer_of_s3(bucket, hbpack, repo, chats, tmp_path):
    upload(repo / "examples/sample/tokenizer", bucket / "tokenizer")
    words = ("tokenize", chats, "--workers", 2, "--output", tmp_path / "out", "--tokenizer")
    done = hbpack(*words, bucket / "tokenizer", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["num_samples"] == 30


def test_a_config_file(far, hbpack, repo, chats, tmp_path):
    (far / "config.yaml").write_bytes(b"groups: 1k:1\r\ngpus: 4\r\nseed: 7\r\n")
    words = ("--tokenizer", repo / "examples/sample/tokenizer", "--output", tmp_path / "out", "--json", "--config")
    done = hbpack("pack", chats, *words, far / "config.yaml")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["shards"]["num_gpus"] == 4
    done = hbpack("pack", chats, *words, far / "none.yaml")
    why = f"config file '{far}/none.yaml' cannot be read: No such file or directory; name a YAML file"
    assert done.stderr == f"error: {why}\n"


def test_a_page(far, hbpack, tmp_path):
    (tmp_path / "lengths.txt").write_text("5\n7\n9\n")
    for _ in range(2):
        done = hbpack("report", tmp_path / "lengths.txt", "--output", far / "page.html", "--json")
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["output"] == f"{far}/page.html"
    page = (far / "page.html").read_bytes()
    assert page.startswith(MARK)
    (far / "page.html").write_bytes(b"mine")
    done = hbpack("report", tmp_path / "lengths.txt", "--output", far / "page.html")
    why = f"--output: '{far}/page.html' already exists and is not a report; name another file"
    assert (done.code, done.stderr) == (2, f"error: {why}\n")
    assert (far / "page.html").read_bytes() == b"mine"
