"""Remote sets of which a node reads little: it fetches about the bytes of its rows, once, and finds damage."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
import torch

from packer_cli.errors import FormatError, RemoteError
from packer_cli.loader import PackedDataset, shard_reader
from packer_cli.loader.read_ahead import ReadAhead
from packer_cli.remote.file_cache import FileCache
from packer_cli.remote.ranged_copy import JOINED, UNIT, RangedCopy
from tests.loader.node import make_set, read_node, row_bytes
from tests.loader.packed_set import PackedSet, write_set
from tests.loader.remote import assert_same, batches, break_reads, cached
from tests.s3_server import s3_server

NUM_GPUS = 8


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """A set for eight GPUs, each of them here a node of its own."""
    return write_set(tmp_path_factory.mktemp("ranges") / "out", [(64, 1, 300)], num_gpus=NUM_GPUS)


@pytest.fixture
def url(packed: PackedSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.001)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    system, root = fsspec.filesystem("memory"), f"/set-{uuid4().hex}"
    system.put(str(packed.path), root, recursive=True)
    yield f"memory:/{root}"
    system.rm(root, recursive=True)


@pytest.mark.parametrize("verify", ["none", "lazy"])
def test_the_batches_are_those_of_the_folder(packed: PackedSet, url: str, tmp_path: Path, verify: Any) -> None:
    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path, verify=verify)
    for epoch in range(4):
        data.set_epoch(epoch)
        assert_same(list(data), batches(PackedDataset(packed.path, 3, NUM_GPUS, epoch)))
    assert {path.suffix for path in cached(tmp_path)} == {".ranges"}
    data.close()


def test_a_footer_larger_than_thought_is_fetched_whole(
    packed: PackedSet, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)
    monkeypatch.setattr(shard_reader, "BLOCK_BYTES", 0)
    monkeypatch.setattr(shard_reader, "_IDENTITY_BYTES", 64 - data._manifest.schema.serialize().size)
    assert_same(list(data), batches(PackedDataset(packed.path, 3, NUM_GPUS)))


def test_workers_share_ranges(packed: PackedSet, tmp_path: Path) -> None:
    data = PackedDataset(f"file://{packed.path}", 3, NUM_GPUS, cache_dir=tmp_path)
    data[0]
    assert_same(batches(data, num_workers=2), batches(PackedDataset(packed.path, 3, NUM_GPUS)))
    data.close()
    assert {path.suffix for path in cached(tmp_path)} == {".ranges"}


def test_a_whole_copy_that_is_there_is_read(packed: PackedSet, url: str, tmp_path: Path) -> None:
    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path, verify="full")
    assert_same(list(data), batches(PackedDataset(packed.path, 3, NUM_GPUS)))
    assert {path.suffix for path in cached(tmp_path)} == {".arrow"}


def test_lost_and_damaged_ranges_are_fetched_again(packed: PackedSet, url: str, tmp_path: Path) -> None:
    """A crash of the machine may leave zeros in place of bytes that are marked as fetched."""
    expected = batches(PackedDataset(packed.path, 3, NUM_GPUS))
    for harm in (lambda data: bytes(len(data)), lambda data: bytes(byte ^ 64 for byte in data)):
        data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)
        assert_same(list(data), expected)
        data.close()
        for path in cached(tmp_path):
            content = path.read_bytes()
            size = int(path.stem.partition("-")[2])
            path.write_bytes(harm(content[:size]) + content[size:])
        assert_same(list(PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)), expected)


def test_damage_in_the_store_is_named(packed: PackedSet, url: str, tmp_path: Path) -> None:
    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)
    i = next(i for i in range(len(data)) if data._place.rows.row(i).shard >= 0)
    row = data._place.rows.row(i)
    shard = data._manifest.groups[row.group].shards[row.shard]
    system, path = fsspec.filesystem("memory"), f"{url.removeprefix('memory:/')}/{shard.path}"
    tokens = PackedDataset(packed.path, 3, NUM_GPUS)._shards.read_row(data._place.rows, i)[1].input_ids.tobytes()
    whole = system.cat_file(path)
    assert whole.count(tokens) == 1
    system.pipe_file(path, whole.replace(tokens, bytes(len(tokens))))
    name = f"^shard '{url}/{shard.path}' is "
    with pytest.raises(
        FormatError, match=rf"{name}damaged \(the checksum of row {row.row} is .*\); copy the set again$"
    ):
        data[i]
    system.rm_file(path)
    with pytest.raises(FormatError, match=f"{name}missing; copy the set again$"):
        data[i]


def test_a_full_disk(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, os.strerror(28))

    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1234))
        with pytest.raises(RemoteError, match=r"^the disk of the cache .* is full: .* and 1,234 are free; "):
            list(data)
    assert len(list(data)) == len(data)


def test_a_failing_network_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int, path: str, data: bytes) -> bytes:
        if path.endswith(".arrow") and "shards" in path:
            raise TimeoutError("no answer")
        return data

    break_reads(monkeypatch, fail)
    data = PackedDataset(url, 3, NUM_GPUS, cache_dir=tmp_path)
    with pytest.raises(RemoteError, match=r"shard-\d+.arrow' could not be read in 6 tries \(Timeout"):
        list(data)


class Object:
    """Bytes in place of a `RemotePath`, and the ranges that were read."""

    def __init__(self, log: Path, *, seconds: float = 0.0) -> None:
        self.data = np.random.default_rng(0).bytes(400 * UNIT + 5)
        self.log, self.seconds = log, seconds

    def read_range(self, begin: int, end: int) -> bytes:
        with self.log.open("a") as file:
            file.write(f"{begin} {end}\n")
        time.sleep(self.seconds)
        return self.data[begin:end]

    def open(self, folder: Path) -> RangedCopy:
        return RangedCopy(FileCache(folder, 10**9), self, len(self.data), "abcdef01" * 4)  # type: ignore[arg-type]

    @property
    def reads(self) -> list[list[int]]:
        return [[*map(int, line.split())] for line in self.log.read_text().splitlines()] if self.log.exists() else []


def test_ranges_are_fetched_once_and_joined_where_near(tmp_path: Path) -> None:
    stored = Object(tmp_path / "log")
    copy = stored.open(tmp_path / "cache")
    copy.require((UNIT + 1, 3 * UNIT), (4 * UNIT, 4 * UNIT + 1), (399 * UNIT, len(stored.data)))
    assert 4 * UNIT + JOINED < 399 * UNIT
    assert stored.reads == [[UNIT, 5 * UNIT], [399 * UNIT, len(stored.data)]]
    assert copy.take_waited()
    copy.require((2 * UNIT, 5 * UNIT), (len(stored.data) - 1, len(stored.data)))
    assert not copy.take_waited()
    assert copy.has(UNIT, 5 * UNIT)
    assert not copy.has(0, 5 * UNIT)
    other = stored.open(tmp_path / "cache")  # of another process
    other.require((0, 6 * UNIT))
    assert stored.reads[2:] == [[0, 6 * UNIT]]
    assert bytes(other.data)[: 6 * UNIT] == bytes(copy.data)[: 6 * UNIT] == stored.data[: 6 * UNIT]
    assert bytes(copy.data)[399 * UNIT :] == stored.data[399 * UNIT :]
    assert not any(bytes(copy.data)[6 * UNIT : 399 * UNIT])
    num_bytes = 512 * os.stat(copy.path).st_blocks
    assert num_bytes <= 5 * 4096


def test_looking_for_ranges_takes_no_memory_of_a_tmpfs(tmp_path: Path) -> None:
    """Reading an absent page of a mapped file takes some; the process would end with SIGBUS if there is none."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("there is no tmpfs")
    with TemporaryDirectory(dir=shared) as folder:
        copy = Object(tmp_path).open(Path(folder))  # Its log is a folder, so that reading fails.
        with pytest.raises(IsADirectoryError):
            copy.require((0, 9 * UNIT))
        assert os.stat(copy.path).st_blocks == 0
        copy.close()


def _require(folder: Path, log: Path, start: Any, begin: int) -> None:
    stored = Object(log, seconds=0.3)
    copy = stored.open(folder)
    start.wait()
    copy.require((begin, begin + 9 * UNIT))
    assert bytes(copy.data)[begin : begin + 9 * UNIT] == stored.data[begin : begin + 9 * UNIT]


def test_processes_fetch_a_range_once_and_others_meanwhile(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, log = context.Event(), tmp_path / "log"
    begins = [0, 0, 0, 200 * UNIT, 200 * UNIT]
    processes = [context.Process(target=_require, args=(tmp_path / "cache", log, start, begin)) for begin in begins]
    for process in processes:
        process.start()
    begun = time.monotonic()
    start.set()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * len(begins)
    assert sorted(Object(log).reads) == [[0, 9 * UNIT], [200 * UNIT, 209 * UNIT]]
    assert time.monotonic() - begun < 5


def test_waiting_doubles_what_is_read_ahead(packed: PackedSet) -> None:
    data = PackedDataset(packed.path, 3, NUM_GPUS)
    rows, fetched = data._place.rows, []
    ahead = ReadAhead(data._manifest, lambda place, found: fetched.extend((place, row) for row in found or ()), 10**9)
    ahead.enter(rows)
    first = next(i for i in range(len(data)) if rows.row(i).shard >= 0)
    found = []
    for number, has_waited in enumerate((False, True, True), first):
        ahead.follow(number, (), is_new=True, has_waited=has_waited)
        until = time.monotonic() + 20
        while ahead._threads and time.monotonic() < until:
            time.sleep(0.001)
        found.append(len(fetched))
    depth = found[0]
    assert 1 < depth <= 8 < found[1] - 0 <= 17 < found[2] <= 34
    wanted = [
        ((row.group, row.shard), row.row) for row in map(rows.row, range(first + 1, len(data))) if row.shard >= 0
    ]
    assert sorted(fetched) == sorted(wanted[: len(fetched)])
    ahead.stop()


_READ_AND_EXIT = """
import os, sys, time
from packer_cli.loader import PackedDataset
from packer_cli.remote.path import RemotePath

read = RemotePath.read_range

def log(*args):
    os.write(1, b"begin\\n")
    time.sleep(0.2)
    data = read(*args)
    os.write(1, b"end\\n")
    return data

RemotePath.read_range = log
data = PackedDataset(f"file://{sys.argv[1]}", 3, 8, cache_dir=sys.argv[2])
for i in range(3):
    data[i]
"""


def test_a_process_ends_when_what_it_is_fetching_is_there(packed: PackedSet, tmp_path: Path) -> None:
    """Without `close`: Python ends daemon threads wherever they are, which aborts the process if that is in Arrow."""
    command = [sys.executable, "-c", _READ_AND_EXIT, str(packed.path), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_WORLD_SIZE"}
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.split()
    assert 0 < lines.count("begin") == lines.count("end")


@pytest.fixture(scope="module")
def s3() -> Any:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.mark.parametrize(
    ("gpus", "iterations"),
    [(256, 3), pytest.param(32, 40, marks=pytest.mark.slow)],  # A node's part is 3 % of the set, or 25 %.
)
def test_a_node_fetches_the_bytes_of_its_rows(
    gpus: int, iterations: int, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of a tenth of the set, while a tenth of all requests fail, and one in 20 is slow."""
    monkeypatch.setattr(s3, "late", 0.05)
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.01)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    options = {
        "key": "key",
        "secret": "secret",
        "endpoint_url": s3.url,
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }
    out, bucket = make_set(tmp_path, gpus, iterations), f"bucket-{uuid4().hex}"
    system = fsspec.filesystem("s3", **options)
    system.mkdir(bucket)
    system.put(str(out), f"{bucket}/out", recursive=True)
    sizes, ranks = row_bytes(out), range(8, 16)
    cache = {"cache_dir": tmp_path / "cache", "cache_bytes": int(0.1 * sizes.sum())}
    for epoch, most in (
        (0, 1.1),
        (2, 1.1),
        (1, 1.4),
    ):  # Written, not written, and written: rows from all over the set.
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        s3.sent.clear()
        with s3.failing(slow_down=0.05, cut=0.05), warnings.catch_warnings():
            warnings.simplefilter("error")
            found, _ = read_node(f"s3://{bucket}/out", gpus, ranks, epoch, storage_options=options, **cache)
        expected, _ = read_node(out, gpus, ranks, epoch)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[pack], expected[pack]) for pack in found)
        wanted = sizes[[*found]].sum()
        assert wanted > 32_000 * len(found) * 0.9
        sent = sum(size for path, size in s3.sent.items() if "/shards/" in path)
        assert wanted < sent < most * wanted, (epoch, sent / wanted)
        num_requests = len(s3.requests)
        read_node(f"s3://{bucket}/out", gpus, ranks, epoch, storage_options=options, **cache)
        asked = {request for request in s3.requests[num_requests:] if "/shards/" in request}
        assert gpus == 32 or not asked  # A cache that holds the part of the node holds all that it needs.
        used = sum(512 * path.stat().st_blocks for path in cached(tmp_path / "cache"))
        assert used <= cache["cache_bytes"]
