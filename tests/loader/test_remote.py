"""Sets behind a URL: the cache on this node, damage, failures, a real S3 server."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
import xxhash
from torch.utils.data import DataLoader

from packer_cli.errors import FormatError, RemoteError
from packer_cli.loader import PackedDataset, remote
from packer_cli.loader.cache import FileCache


def add_checksums(folder: Path) -> None:
    file = folder / "hbpack.json"
    manifest = json.loads(file.read_text())
    for group in manifest["groups"]:
        for shard in group["shards"]:
            shard["xxh3"] = xxhash.xxh3_128_hexdigest((folder / shard["path"]).read_bytes())
    file.write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def packed(make_set: Any, tmp_path_factory: Any) -> Any:
    """Two GPUs, two groups, ten shards."""
    folder = tmp_path_factory.mktemp("remote") / "out"
    made = make_set(folder, [(64, 1, 300), (128, 2, 50)], num_gpus=2, num_epochs=1)
    add_checksums(folder)
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.001)


@pytest.fixture
def memory(packed: Any) -> Any:
    """The set in a memory file system of its own: (URL, file system, path)."""
    system = fsspec.filesystem("memory")
    root = f"/set-{uuid4().hex}"
    system.put(str(packed.path), root, recursive=True)
    yield f"memory:/{root}", system, root
    system.rm(root, recursive=True)


def batches(dataset: PackedDataset, **kwargs: Any) -> list[dict[str, Any]]:
    return list(DataLoader(dataset, batch_size=None, **kwargs))


def assert_same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(got) == len(expected) > 10
    for a, b in zip(got, expected, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)


def shards_of(packed: Any) -> list[dict[str, Any]]:
    groups = json.loads((packed.path / "hbpack.json").read_text())["groups"]
    return [shard for group in groups for shard in group["shards"]]


def cached(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def size_of(path: Path) -> int:
    """0 where it has gone meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class Broken:
    """A file system some of whose reads go wrong."""

    def __init__(self, system: Any, fail: Any) -> None:
        self._system, self.fail, self.num_reads = system, fail, 0

    def cat_file(self, path: str, **kwargs: Any) -> bytes:
        self.num_reads += 1
        return self.fail(self.num_reads, path, self._system.cat_file(path, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def break_reads(monkeypatch: Any, fail: Any) -> Broken:
    """`fail(number of the read, path, data)` gives what a read gives, or raises."""
    broken = Broken(fsspec.filesystem("memory"), fail)
    monkeypatch.setattr(fsspec, "url_to_fs", lambda url, **_: (broken, url.removeprefix("memory:/")))
    return broken


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


def test_what_is_read_stays_and_the_bound_gives_way_with_a_warning(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 25)

    def fill(descriptor: int) -> None:
        os.pwrite(descriptor, b"x" * 10, 0)

    one, two = cache.open("one", 10, fill), cache.open("two", 10, fill)
    with pytest.warns(UserWarning, match="grows over cache_bytes=25"):
        three = cache.open("three", 10, fill)
    assert [path.name for path in cached(tmp_path)] == ["one", "three", "two"]
    cache.fetch("ahead", 10, fill)
    assert not (tmp_path / "ahead").exists()
    two.close()
    released = []
    four = cache.open("four", 10, fill, lambda: released.append(one.close()))
    assert released == [None]
    assert [path.name for path in cached(tmp_path)] == ["four", "three"]
    three.close()
    four.close()
    os.utime(tmp_path / "four", ns=(1, 1))
    cache.open("three", 10, fill)
    cache.open("five", 10, fill)
    assert [path.name for path in cached(tmp_path)] == ["five", "three"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_a_failed_or_killed_fetch_leaves_nothing(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 25)

    def die(descriptor: int) -> None:
        os.pwrite(descriptor, b"x", 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.open("one", 10, die)
    assert not cached(tmp_path)
    (tmp_path / ".two.part").write_bytes(b"x" * 20)  # of a process that was killed: it must not count
    (tmp_path / "short").write_bytes(b"x" * 3)  # not what it should be
    fills = []
    file = cache.open("short", 10, lambda descriptor: fills.append(os.pwrite(descriptor, b"y" * 10, 0)))
    assert fills == [10]
    assert file.path.read_bytes() == b"y" * 10
    assert sorted(os.listdir(tmp_path)) == [".lock", "short"]


def fetch_in_process(folder: str, log: str, start: Any) -> None:
    cache = FileCache(Path(folder), 100)

    def fill(descriptor: int) -> None:
        with open(log, "a") as file:
            file.write("fetched\n")
        time.sleep(0.2)
        os.pwrite(descriptor, b"z" * 10, 0)

    start.wait()
    assert cache.open("one", 10, fill).path.read_bytes() == b"z" * 10


def test_processes_fetch_a_file_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Event()
    log = tmp_path / "log"
    arguments = (str(tmp_path / "cache"), str(log), start)
    processes = [context.Process(target=fetch_in_process, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "fetched\n"


def test_the_next_shards_are_fetched_in_the_background(packed: Any, memory: Any, tmp_path: Path) -> None:
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, prefetch=2)
    i = next(i for i in range(len(data)) if data[i]["pack_id"] >= 0)
    expected = {f"{shard['xxh3']}-{shard['num_bytes']}.arrow" for shard in next_shards(packed, data, i, 3)}
    until = time.monotonic() + 20
    while len(cached(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert {path.name for path in cached(tmp_path)} == expected
    assert threading.current_thread() is threading.main_thread()
    none = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path / "none", prefetch=0)
    none[i]
    assert len(cached(tmp_path / "none")) == 1


def test_closed_it_fetches_nothing_more(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cache = tmp_path / "cache"
    download, is_reached, may_go_on = remote.RemoteStorage._download, threading.Event(), threading.Event()

    def wait_in_background(self: Any, entry: Any, descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            is_reached.set()
            assert may_go_on.wait(20)
        download(self, entry, descriptor)

    monkeypatch.setattr(remote.RemoteStorage, "_download", wait_in_background)
    data = PackedDataset(memory[0], 0, 2, cache_dir=cache, prefetch=2)
    assert any(data[i]["pack_id"] >= 0 for i in range(len(data)))
    assert is_reached.wait(20)
    threading.Timer(0.1, may_go_on.set).start()
    data.close()
    assert len(cached(cache)) == 2  # the one that was read, and the one that was on its way
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


def next_shards(packed: Any, data: PackedDataset, i: int, num: int) -> list[dict[str, Any]]:
    """The first shards from iteration `i` on, found by reading on from a folder."""
    places: dict[int, dict[str, Any]] = {}
    for batch in PackedDataset(packed.path, 0, 2).iter_from(i):
        for shard in shards_of(packed):
            if 0 <= batch["pack_id"] - shard["first_pack"] < shard["num_packs"] and len(places) < num:
                places.setdefault(shard["first_pack"], shard)
    return list(places.values())


def test_a_failing_network_is_tried_again(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(number: int, path: str, data: bytes) -> bytes:
        if number % 3:
            raise ConnectionResetError("reset by peer")
        return data

    broken = break_reads(monkeypatch, fail)
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, prefetch=0)
    assert_same(list(data), batches(PackedDataset(packed.path, 0, 2)))
    assert broken.num_reads == 3 * (2 + len(shards_of(packed)))


def test_a_network_that_stays_away_is_named(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(number: int, path: str, data: bytes) -> bytes:
        if path.endswith("shard-00000.arrow"):
            raise TimeoutError("no answer")
        return data

    broken = break_reads(monkeypatch, fail)
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, prefetch=0)
    with pytest.raises(RemoteError) as error:
        list(data)
    shard = next(s["path"] for s in shards_of(packed) if s["path"] in str(error.value))
    assert str(error.value) == (
        f"'{memory[0]}/{shard}' could not be read in 4 tries (TimeoutError: no answer); check the network and the "
        "address, and go on from the last state"
    )
    assert sum(path.suffix == ".part" for path in tmp_path.iterdir()) == 0
    broken.fail = lambda number, path, data: data
    done = data.position
    assert_same([data[i] for i in range(done)] + list(data), batches(PackedDataset(packed.path, 0, 2)))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verify", ["lazy", "none"])
def test_a_damaged_download_is_fetched_again_once(
    packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any, times: int, verify: Any
) -> None:
    shard = next_shards(packed, PackedDataset(packed.path, 0, 2), 0, 1)[0]
    damaged = []

    def fail(number: int, path: str, data: bytes) -> bytes:
        if path.endswith(shard["path"]) and len(damaged) < times:
            damaged.append(path)
            return b"x" * len(data)
        return data

    break_reads(monkeypatch, fail)
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, prefetch=0, verify=verify)
    i = next(i for i in range(len(data)) if data._rows.row(i).shard >= 0)
    if times == 1:
        assert data[i]["pack_id"] >= 0
        return
    with pytest.raises(FormatError) as error:
        data[i]
    xxh3 = xxhash.xxh3_128_hexdigest(b"x" * shard["num_bytes"])
    why = "Not an Arrow file" if verify == "none" else f"its checksum is {xxh3}, hbpack.json says {shard['xxh3']}"
    assert str(error.value) == (
        f"shard '{memory[0]}/{shard['path']}' is damaged or incomplete ({why}); copy the set again"
    )


def test_a_damaged_file_in_the_cache_is_fetched_again(packed: Any, memory: Any, tmp_path: Path) -> None:
    expected = batches(PackedDataset(packed.path, 0, 2))
    list(PackedDataset(memory[0], 0, 2, cache_dir=tmp_path))
    for path in cached(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert_same(list(PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, verify="lazy")), expected)


def test_damage_in_the_store_and_missing_files(packed: Any, memory: Any, tmp_path: Path) -> None:
    url, system, root = memory
    shard = shards_of(packed)[0]
    whole = system.cat_file(f"{root}/{shard['path']}")
    begin = f"shard '{url}/{shard['path']}' is damaged or incomplete ("

    def message() -> str:
        with pytest.raises(FormatError) as error:
            PackedDataset(url, 0, 2, cache_dir=tmp_path / uuid4().hex, verify="full")
        return str(error.value)

    system.pipe_file(f"{root}/{shard['path']}", whole[:-1])
    n = len(whole)
    assert message() == f"{begin}{n - 1} bytes, hbpack.json says {n}); copy the set again"
    system.rm_file(f"{root}/{shard['path']}")
    assert message().startswith(begin)
    system.rm_file(f"{root}/ranks/epoch-000/rank-00000.arrow")
    assert message().startswith(f"'{url}/ranks/epoch-000/rank-00000.arrow' is damaged or incomplete; copy the set")
    system.rm_file(f"{root}/hbpack.json")
    assert message().startswith(f"'{url}' holds no hbpack.json, so it is no packed set or an unfinished one")


@pytest.mark.parametrize("verify", ["lazy", "full"])
def test_a_damaged_local_shard_is_found(packed: Any, tmp_path: Path, verify: Any) -> None:
    folder = Path(shutil.copytree(packed.path, tmp_path / "out"))
    shard = folder / shards_of(packed)[0]["path"]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    message = r"is damaged or incomplete \(its checksum is .*\); run hbpack pack again"
    if verify == "full":
        with pytest.raises(FormatError, match=message):
            PackedDataset(folder, 0, 2, verify=verify)
        return
    dataset = PackedDataset(folder, 0, 2, verify=verify)
    with pytest.raises(FormatError, match=message):
        list(dataset)


def test_arguments(packed: Any, monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match=r"^verify is 'some': choose one of none, lazy, full$"):
        PackedDataset(packed.path, 0, 2, verify="some")  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=r"^'nowhere://x' cannot be opened: Protocol not known: nowhere; check the "):
        PackedDataset("nowhere://x", 0, 2)
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(ImportError, match=r"^verify='lazy' needs xxhash: pip install xxhash, or give verify='none'$"):
        PackedDataset(packed.path, 0, 2, verify="lazy")


@pytest.fixture(scope="module")
def s3() -> Any:
    """An S3 server in this process: options for its file system."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield {"key": "key", "secret": "secret", "endpoint_url": f"http://{host}:{port}"}
    running.stop()


@pytest.fixture
def bucket(packed: Any, s3: Any) -> str:
    system = fsspec.filesystem("s3", **s3)
    name = f"bucket-{uuid4().hex}"
    system.mkdir(name)
    system.put(str(packed.path), f"{name}/out", recursive=True)
    return f"s3://{name}/out"


@pytest.mark.parametrize("workers", [0, 2])
def test_s3(packed: Any, s3: Any, bucket: str, tmp_path: Path, workers: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(remote, "BLOCK", 5000)  # a shard in several requests
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
    with pytest.raises(FormatError, match=f"^shard '{bucket}/{shard}' is damaged or incomplete"):
        PackedDataset(bucket, 0, 2, cache_dir=tmp_path, verify="full", storage_options=s3)
    with pytest.raises(FormatError, match=r"holds no hbpack.json"):
        PackedDataset(f"{bucket}/nothing", 0, 2, storage_options=s3)
    away = {**s3, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(RemoteError, match=f"^'{bucket}/hbpack.json' could not be read in 4 tries "):
        PackedDataset(bucket, 0, 2, storage_options=away)
