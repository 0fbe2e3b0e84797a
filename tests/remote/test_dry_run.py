"""What `pack --dry-run` asks of an object store, and the requests that it predicts for the run."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done
from tests.remote.conftest import keeps_copies
from tests.s3_server import S3Server


def lines_of(num_bytes: int) -> bytes:
    """Lines that compress to half their size."""
    draw = random.Random(0)
    return b"".join(
        json.dumps({"text": draw.randbytes(min(num_bytes, 4000) // 2).hex()}).encode() + b"\n"
        for _ in range(0, num_bytes, 4000)
    )


@keeps_copies
@pytest.mark.parametrize("kind", ["small", "large", "gzip"])
def test_requests(
    s3: S3Server, bucket: RemotePath, hbpack: Callable[..., Done], repo: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "small":
        for number in range(60):
            (bucket / f"corpus/{number:03}.jsonl").write_bytes(lines_of(1 << 10))
    elif kind == "large":
        (bucket / "corpus/a.jsonl").write_bytes(lines_of(20 << 20))
    else:
        (bucket / "corpus/a.jsonl.gz").write_bytes(gzip.compress(lines_of(12 << 20), 1))
    words = ("pack", bucket / "corpus", "--tokenizer", repo / "examples/sample/tokenizer", "--workers", 1)
    words += ("--groups", "1k", "--gpus", 1, "--output", tmp_path / "out")
    requests, sent = s3.requests, s3.sent

    def read(*more: object) -> tuple[Counter[str], int, Done]:
        requests.clear()
        sent.clear()
        done = hbpack(*words, *more)
        assert done.code == 0, done.stderr
        return Counter(each.split()[0] for each in requests), sum(sent.values()), done

    asked, num_bytes, done = read("--dry-run", "--json")
    found = json.loads(done.stdout)
    assert asked.keys() <= {"GET", "HEAD"}
    assert not (tmp_path / "out").exists()
    assert num_bytes < {"small": 200 << 10, "large": 12 << 20, "gzip": 20 << 20}[kind]
    assert asked.total() < {"small": 70, "large": 60, "gzip": 40}[kind]
    run = read()[0].total()
    assert found["runs"][0]["requests"] == pytest.approx(run, rel=0.25)
    assert found["runs"][1]["requests"] > found["runs"][0]["requests"]
