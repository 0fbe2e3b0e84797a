"""`hbpack append` of a set and inputs behind URLs: late objects, and objects that retention deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer_cli.format.versions import set_at
from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done
from tests.remote.conftest import tree, upload
from tests.s3_server import S3Server


def test_objects_come_and_go(
    s3: S3Server, bucket: RemotePath, tmp_path: Path, repo: Path, hbpack: Callable[..., Done], monkeypatch: Any
) -> None:
    """The set is that of the same steps on a disk."""
    sample = repo / "examples" / "sample"
    lines = (sample / "chats.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data").mkdir()
    texts = {name: "".join(lines[20 * i : 20 * i + 20]) for i, name in enumerate(["a", "b", "c", "bb", "new"])}
    for name in ("a", "b", "c"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(texts[name])
    (tmp_path / "new.jsonl").write_text(texts["new"])
    upload(tmp_path, bucket)
    monkeypatch.chdir(tmp_path)
    words = ("--tokenizer", sample / "tokenizer", "--groups", "1k:1", "--gpus", 2, "--workers", 1, "--output")
    assert hbpack("pack", "data", *words, tmp_path / "out").code == 0
    assert hbpack("pack", f"{bucket}/data", *words, f"{bucket}/out").code == 0
    (tmp_path / "data" / "b.jsonl").unlink()
    (bucket / "data" / "b.jsonl").unlink()
    (tmp_path / "data" / "bb.jsonl").write_text(texts["bb"])
    (bucket / "data" / "bb.jsonl").write_bytes(texts["bb"].encode())
    for out, new, gone in (
        (tmp_path / "out", "new.jsonl", "data/b.jsonl"),
        (bucket / "out", bucket / "new.jsonl", f"{bucket}/data/b.jsonl"),
    ):
        done = hbpack("append", out, new, "--workers", 1)
        assert done.code == 2
        assert f"{gone}: gone since the set was packed" in done.stderr
        done = hbpack("append", out, new, "--workers", 1, "--gone", "keep")
        assert done.code == 0, done.stderr
        assert f"gone, and kept in the set: {gone}\n" in done.stderr
        assert "appended 2 inputs to 1" in done.stderr
    assert shards(tree(set_at(bucket / "out"))) == shards(tree(set_at(tmp_path / "out")))
    done = hbpack("append", bucket / "out", "--workers", 1, "--gone", "keep")
    assert done.code == 0, done.stderr
    assert "the set has this data already" in done.stderr
    shutil.rmtree(tmp_path / "out")
    assert hbpack("append", bucket / "out", "--workers", 1, "--gone", "drop").code == 0
    named = (f"{bucket}/data/[ac].jsonl", f"{bucket}/data/bb.jsonl", f"{bucket}/new.jsonl")
    assert hbpack("pack", *named, *words, tmp_path / "out").code == 0
    assert shards(tree(set_at(bucket / "out"))) == shards(tree(set_at(tmp_path / "out")))


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of shards and manifests of ranks, by the ends of their names."""
    return {name.rpartition("/")[2]: data for name, data in files.items() if "shards/" in name or "ranks/" in name}
