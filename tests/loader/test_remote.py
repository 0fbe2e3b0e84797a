"""Sets behind a URL: the batches of the folder, workers, the bound of the cache, and shards fetched ahead."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from packer_cli.errors import RemoteError
from packer_cli.loader import PackedDataset
from packer_cli.remote import local
from tests.loader.remote import assert_same, batches, cached, next_shards, shards_of, size_of

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def packed(remote_set: Any) -> Any:
    return remote_set


@pytest.mark.parametrize("verify", ["none", "lazy", "full"])
def test_the_batches_are_those_of_the_folder(packed: Any, memory: Any, tmp_path: Path, verify: Any) -> None:
    data = PackedDataset(memory[0], 1, 2, cache_dir=tmp_path, verify=verify)
    assert data.path == memory[0]
    assert len(list(tmp_path.glob("*.arrow"))) == (len(shards_of(packed)) if verify == "full" else 0)
    for epoch in (0, 2):
        data.set_epoch(epoch)
        assert_same(list(data), batches(PackedDataset(packed.path, 1, 2, epoch=epoch)))
    assert len(cached(tmp_path)) == len(shards_of(packed))


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_share_the_cache(packed: Any, tmp_path: Path, context: str) -> None:
    data = PackedDataset(f"file://{packed.path}", 0, 2, cache_dir=tmp_path, verify="lazy")
    data[0]
    got = batches(data, num_workers=2, multiprocessing_context=context)
    assert_same(got, batches(PackedDataset(packed.path, 0, 2)))


def test_the_cache_keeps_to_its_bound(packed: Any, memory: Any, tmp_path: Path) -> None:
    sizes = [shard["num_bytes"] for shard in shards_of(packed)]
    bound = 3 * max(sizes)
    assert sum(sizes) > 2 * bound
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, cache_bytes=bound)
    most = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = []
        for batch in data:
            got.append(batch)
            most = max(most, sum(size_of(path) for path in cached(tmp_path)))
    assert bound - max(sizes) < most <= bound
    assert_same(got, batches(PackedDataset(packed.path, 0, 2)))


def test_the_next_shards_are_fetched_in_the_background(packed: Any, memory: Any, tmp_path: Path) -> None:
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path)
    i = next(i for i in range(len(data)) if data[i]["pack_id"] >= 0)
    expected = {f"{shard['xxh3']}-{shard['num_bytes']}.arrow" for shard in next_shards(packed, data, i, 3)}
    until = time.monotonic() + 20
    while len(cached(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert {path.name for path in cached(tmp_path)} == expected
    assert threading.current_thread() is threading.main_thread()


def test_closed_it_fetches_nothing_more(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cache = tmp_path / "cache"
    download, is_reached, may_go_on = local._download, threading.Event(), threading.Event()

    def wait_in_background(*arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            is_reached.set()
            assert may_go_on.wait(20)
        download(*arguments)

    monkeypatch.setattr(local, "_download", wait_in_background)
    data = PackedDataset(memory[0], 0, 2, cache_dir=cache)
    assert any(data[i]["pack_id"] >= 0 for i in range(len(data)))
    assert is_reached.wait(20)
    threading.Timer(0.1, may_go_on.set).start()
    data.close()
    assert 2 <= len(cached(cache)) <= 3  # the one that was read, and those that were on their way
    shutil.rmtree(cache)
    time.sleep(0.1)
    assert not cache.exists()
    assert_same(batches(data), batches(PackedDataset(packed.path, 0, 2)))


def test_closing_a_local_set_lets_go_of_its_files(packed: Any) -> None:
    data = PackedDataset(packed.path, 0, 2)
    expected = batches(data)
    data.close()
    assert not data._shards._files
    assert_same(batches(data), expected)


def test_arguments(packed: Any, monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match=r"^verify is 'some': choose one of none, lazy, full$"):
        PackedDataset(packed.path, 0, 2, verify="some")  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=r"^'nowhere://x' cannot be opened: Protocol not known: nowhere; check the "):
        PackedDataset("nowhere://x", 0, 2)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(ImportError, match=r"^'s3://bucket/out' needs s3fs: pip install 'hbpack\[remote\]'$"):
        PackedDataset("s3://bucket/out", 0, 2)
