"""Sets on a real S3 server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from packer_cli.errors import FormatError, RemoteError
from packer_cli.loader import PackedDataset
from packer_cli.remote import local
from tests.loader.remote import assert_same, batches, shards_of
from tests.s3_server import s3_server

pytestmark = pytest.mark.usefixtures("quick", "one_node")


@pytest.fixture
def packed(remote_set: Any) -> Any:
    return remote_set


@pytest.fixture(scope="module")
def s3() -> Any:
    """An S3 server in this process: options for its file system."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield {"key": "key", "secret": "secret", "endpoint_url": server.url}


@pytest.fixture
def bucket(packed: Any, s3: Any) -> str:
    system = fsspec.filesystem("s3", **s3)
    name = f"bucket-{uuid4().hex}"
    system.mkdir(name)
    system.put(str(packed.path), f"{name}/out", recursive=True)
    return f"s3://{name}/out"


@pytest.mark.parametrize("workers", [0, 2])
def test_s3(packed: Any, s3: Any, bucket: str, tmp_path: Path, workers: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(local, "BLOCK", 5000)  # a shard in several requests
    data = PackedDataset(bucket, 0, 2, cache_dir=tmp_path, verify="lazy", storage_options=s3)
    expected = batches(PackedDataset(packed.path, 0, 2))
    assert_same(batches(data, num_workers=workers), expected)
    state = data.state_dict(7)
    data = PackedDataset(bucket, 0, 2, cache_dir=tmp_path / "other", storage_options=s3)
    data.load_state_dict(state)
    assert_same(batches(data, num_workers=workers, sampler=data.remaining()), expected[7:])


def test_s3_without_an_object_or_a_server(packed: Any, s3: Any, bucket: str, tmp_path: Path) -> None:
    system = fsspec.filesystem("s3", **s3)
    shard = shards_of(packed)[0]["path"]
    system.rm_file(f"{bucket}/{shard}".removeprefix("s3://"))
    with pytest.raises(FormatError, match=f"^shard '{bucket}/{shard}' is missing; copy the set again"):
        PackedDataset(bucket, 0, 2, cache_dir=tmp_path, verify="full", storage_options=s3)
    with pytest.raises(FormatError, match=r"holds no hbpack.json"):
        PackedDataset(f"{bucket}/nothing", 0, 2, storage_options=s3)
    away = {**s3, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(RemoteError, match=f"^'{bucket}/hbpack.json' could not be read in 6 tries "):
        PackedDataset(bucket, 0, 2, storage_options=away)
