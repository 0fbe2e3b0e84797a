"""`--exclude` of a set behind a URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done
from tests.remote.conftest import tree, upload
from tests.s3_server import S3Server


def test_records_are_excluded_as_on_a_disk(
    s3: S3Server, bucket: RemotePath, tmp_path: Path, repo: Path, hbpack: Callable[..., Done]
) -> None:
    sample = repo / "examples" / "sample"
    (tmp_path / "data").mkdir()
    lines = (sample / "chats.jsonl").read_text().splitlines(keepends=True)[:40]
    records = [json.dumps(json.loads(line) | {"id": f"user-{number}"}) for number, line in enumerate(lines)]
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(records))
    (tmp_path / "data" / "remove.txt").write_text("a.jsonl:3\nid:user-17\n")
    upload(tmp_path, bucket)
    words = ("--tokenizer", sample / "tokenizer", "--groups", "1k:1", "--gpus", 2, "--keep-columns", "id")
    stores = []
    for place in (tmp_path, bucket):
        done = hbpack("pack", f"{place}/data/a.jsonl", *words, "--output", f"{place}/out")
        assert done.code == 0, done.stderr
        done = hbpack("append", f"{place}/out", "--exclude", f"{place}/data/remove.txt", "--keep", 1)
        assert done.code == 0, done.stderr
        assert "2 of them excluded" in done.stderr
        files = tree(place / "out")
        stores.append({name: data for name, data in files.items() if "part-" in name or name == "excluded.txt"})
    assert stores[0] == stores[1]
    assert len(stores[0]) == 2
