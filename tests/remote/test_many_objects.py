"""Many small objects: one request each, many at a time; and what a run with nothing new reads."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from packer_cli.corpus import unchanged
from packer_cli.corpus.discover import discover
from packer_cli.errors import RunError
from packer_cli.files import fingerprint
from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done
from tests.remote.conftest import keeps_copies, tree
from tests.s3_server import S3Server

NUMBER = 40


def text_of(number: int, word: str = "lorem") -> bytes:
    return json.dumps({"text": f"{number:03} {word} ipsum"}).encode() + b"\n"


@pytest.fixture
def corpus(bucket: RemotePath) -> RemotePath:
    """Objects of a few bytes each, in two folders."""
    for number in range(NUMBER):
        (bucket / f"corpus/{number % 2}/{number:03}.jsonl").write_bytes(text_of(number))
    return bucket / "corpus"


@pytest.fixture
def counted(s3: S3Server, corpus: RemotePath) -> Callable[[Done], Counter[str]]:
    """Requests for objects of the corpus since it was last asked, by method."""
    prefix = corpus.url.removeprefix("s3:/") + "/"

    def count(done: Done) -> Counter[str]:
        assert done.code == 0, done.stderr
        found = [request.split(" ", 1) for request in s3.requests]
        s3.requests.clear()
        return Counter(method for method, path in found if path.startswith(prefix) and path.endswith("jsonl"))

    s3.requests.clear()
    return count


@pytest.fixture
def tokenize(hbpack: Callable[..., Done], corpus: RemotePath, repo: Path, tmp_path: Path) -> Callable[..., Done]:
    def call(*words: object, output: str = "out") -> Done:
        tokenizer = repo / "examples" / "sample" / "tokenizer"
        out = tmp_path / output
        return hbpack("tokenize", corpus, "--tokenizer", tokenizer, "--output", out, "--workers", 1, *words)

    return call


def test_an_object_costs_one_request(s3: S3Server, counted: Any, tokenize: Any) -> None:
    s3.at_once, s3.latency = 0, 0.02
    try:
        done = tokenize()
    finally:
        s3.latency = 0.0
    assert counted(done) == {"GET": NUMBER}
    assert s3.at_once >= 8


def test_the_tasks_of_an_array_read_each_object_once(
    counted: Any, tokenize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer_cli.tokens.input_slices.GROUP_BYTES", 300)
    assert counted(tokenize(output="alone")) == {"GET": NUMBER}
    requests = [counted(tokenize("--shard", f"{index}/2")) for index in range(2)]
    assert sum(requests, Counter()) == {"GET": NUMBER}
    assert all(0 < each["GET"] < NUMBER for each in requests)
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_every_format_is_cut_by_one_request(s3: S3Server, bucket: RemotePath, tmp_path: Path, name: str) -> None:
    from packer_cli.corpus.discover import slice_corpus
    from tests.corpus.test_unchanged import FORMATS

    FORMATS[name](tmp_path / name, 0)
    (bucket / name).write_bytes((tmp_path / name).read_bytes())
    files = discover([str(bucket / name)])[1]
    s3.requests.clear()
    far = slice_corpus(files)
    assert s3.requests == [f"GET /{bucket.url.removeprefix('s3://')}/{name}"]
    near = slice_corpus(discover([str(tmp_path / name)])[1])
    assert [(each.start, each.stop, each.file.fingerprint, each.xxh3) for each in far if not each.span] == [
        (each.start, each.stop, each.file.fingerprint, each.xxh3) for each in near if not each.span
    ]
    assert len(far) == len(near)


def test_an_object_that_is_replaced_is_read_as_it_is_now_or_not_at_all(bucket: RemotePath) -> None:
    """Before anybody has read it, another version of its size will do, as some storages list other ETags."""
    path = bucket / "a.jsonl"
    path.write_bytes(text_of(1))
    (file,) = discover([str(path)])[1]
    path.write_bytes(text_of(2))
    held = unchanged.hold(file)
    assert held.content == text_of(2)
    seen = held._replace(content=None)
    assert unchanged.hold(seen) == held
    path.write_bytes(text_of(3))
    with pytest.raises(RunError, match="has changed since the run began"):
        unchanged.hold(seen)
    path.write_bytes(text_of(4) * 2)
    with pytest.raises(RunError, match="has changed since the run began"):
        unchanged.hold(file)


def test_many_objects_come_through_faults(s3: S3Server, counted: Any, tokenize: Any, tmp_path: Path) -> None:
    tokenize(output="alone")
    before = s3.faults
    with s3.failing(slow_down=0.1, cut=0.1):
        assert tokenize().code == 0
    assert s3.faults > before + 4
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


def test_a_run_with_nothing_new_reads_no_input(
    counted: Any, tokenize: Any, corpus: RemotePath, tmp_path: Path
) -> None:
    assert counted(tokenize()) == {"GET": NUMBER}
    before = tree(tmp_path / "out")
    assert (tmp_path / "out/tokens/inputs.json").exists()
    assert counted(tokenize()) == {}
    assert counted(tokenize("--recheck")) == {"GET": NUMBER}
    assert tree(tmp_path / "out") == before
    (tmp_path / "out/tokens/inputs.json").write_text("{}")
    assert counted(tokenize()) == {"GET": NUMBER}
    assert tree(tmp_path / "out") == before


def test_an_object_that_changes_is_read_again(counted: Any, tokenize: Any, corpus: RemotePath, tmp_path: Path) -> None:
    """Its part, of all of the objects, is made again: each of them is read once for it, and the new one to be cut."""
    tokenize()
    (corpus / "0/000.jsonl").write_bytes(text_of(0, "dolor"))
    counted(tokenize(output="other"))
    assert counted(tokenize()) == {"GET": NUMBER + 1}
    assert tree(tmp_path / "out") == tree(tmp_path / "other")
    assert counted(tokenize()) == {}


def test_what_turns_out_to_be_wrong_is_forgotten(tokenize: Any, tmp_path: Path) -> None:
    tokenize()
    known = tmp_path / "out/tokens/inputs.json"
    value = json.loads(known.read_text())
    name = next(iter(value["files"]))
    value["files"][name][0]["fingerprint"] = "0" * 32
    known.write_text(json.dumps(value | {"xxh3": fingerprint(value["files"], value["release"])}))
    done = tokenize()
    assert done.code == 1
    assert "has changed since the run began" in done.stderr
    assert tokenize().code == 0


@keeps_copies
@pytest.mark.parametrize(("name", "workers"), [("a.jsonl", 1), ("a.jsonl.gz", 3), ("a.parquet", 1)])
def test_a_large_object_is_fetched_once(
    s3: S3Server, bucket: RemotePath, repo: Path, tmp_path: Path, name: str, workers: int
) -> None:
    """For all workers, and for another tokenizer, while the disk of the cache has room; the bytes are the same.

    In a process of its own, whose workers have its environment.
    """
    lines = b"".join(json.dumps({"text": os.urandom(900).hex()}).encode() + b"\n" for _ in range(6000))
    local = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.json.read_json(pa.BufferReader(lines)), local, row_group_size=1000)
    else:
        local.write_bytes(gzip.compress(lines, 1) if name.endswith("gz") else lines)
    path = bucket / "corpus" / name
    path.write_bytes(local.read_bytes())
    key = path.url.removeprefix("s3:/")

    def tokenize(place: object, out: str, *words: object) -> int:
        s3.sent.clear()
        given = ("--tokenizer", repo / "examples" / "sample" / "tokenizer", "--output", tmp_path / out)
        asked = [sys.executable, "-m", "packer_cli", "tokenize", place, *given, "--workers", workers, *words]
        subprocess.run([*map(str, asked)], check=True)
        return s3.sent[key]

    size = local.stat().st_size
    assert tokenize(path, "far") == size
    assert tokenize(path, "far", "--max-record-bytes", "1MiB") == 0
    tokenize(local, "near", "--max-record-bytes", "1MiB")
    far, near = (
        [file.read_bytes() for file in sorted((tmp_path / out / "tokens").glob("*.arrow"))] for out in ("far", "near")
    )
    assert len(far) == len(near) > 1


def test_where_the_cache_has_no_room_an_object_is_read_twice(
    s3: S3Server, bucket: RemotePath, hbpack: Callable[..., Done], repo: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    path = bucket / "corpus" / "a.jsonl"
    path.write_bytes(text_of(1) * 150_000)
    words = ("tokenize", path, "--tokenizer", repo / "examples" / "sample" / "tokenizer", "--workers", 1, "--output")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10, free=1))
    s3.sent.clear()
    assert hbpack(*words, tmp_path / "out").code == 0
    assert s3.sent[path.url.removeprefix("s3:/")] == pytest.approx(2 * path.stat().st_size, rel=0.1)
