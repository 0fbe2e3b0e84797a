"""Requests that fail and are sent again are counted, by whoever sends them, and said."""

from __future__ import annotations

import re
from typing import Any

import pytest

from packer_cli.remote.path import RemotePath
from packer_cli.remote.retries import note_failures, retry, take_failures
from tests.remote.conftest import upload
from tests.s3_server import S3Server


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    take_failures()


def test_each_failed_answer_of_s3_is_counted_once(s3: S3Server, bucket: RemotePath) -> None:
    """Also those after which s3fs or botocore sends a request again: so few come through to hbpack."""
    s3.faults = 0
    with s3.failing(slow_down=0.4):
        for number in range(20):
            (bucket / "x").write_bytes(str(number).encode())
            assert (bucket / "x").read_bytes() == str(number).encode()
    found = take_failures()
    host = s3.url.removeprefix("http://")
    assert found[f"{host} answers 503"] > 10
    assert {answer.partition(" (")[0] for answer in found} <= {f"{host} answers 503", f"{host} does not answer"}
    assert sum(found.values()) == s3.faults
    assert take_failures() == {}


def test_other_storage_is_counted_where_hbpack_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.001)
    answers = [TimeoutError(), OSError(), None]

    def request() -> None:
        if error := answers.pop(0):
            raise error

    retry("gs://bucket/x", request)
    assert take_failures() == {"gs storage fails (TimeoutError)": 1, "gs storage fails (OSError)": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stage_says_its_failures(
    s3: S3Server, bucket: RemotePath, hbpack: Any, repo: Any, tmp_path: Any, workers: int
) -> None:
    sample = repo / "examples" / "sample"
    lines = (sample / "chats.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_bytes(lines[number])
    upload(tmp_path, bucket / "corpus")
    words = ("--tokenizer", sample / "tokenizer", "--workers", workers, "-o", bucket / "out")
    s3.faults = 0
    note_failures({"an earlier command fails": 7})
    with s3.failing(slow_down=0.3):
        done = hbpack("tokenize", f"{bucket}/corpus/", *words)
    assert done.code == 0, done.stderr
    said = done.stderr.splitlines()
    first = next(line for line in said if line.endswith("; trying again"))
    assert first.startswith(s3.url.removeprefix("http://"))
    counts = dict(re.findall(r"^(.+): (\d+) failed requests? to storage, sent again \(", done.stderr, re.MULTILINE))
    assert list(counts) == ["Tokenizing", "other work"]
    assert sum(map(int, counts.values())) == s3.faults
