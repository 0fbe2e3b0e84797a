"""What goes wrong with a set behind a URL: a failing network, damaged downloads, shards and caches, missing files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import xxhash

from packer_cli.errors import FormatError, RemoteError
from packer_cli.loader import PackedDataset
from packer_cli.remote.file_cache import FileCache
from tests.loader.packed_set import write_manifest
from tests.loader.remote import assert_same, batches, break_reads, cached, next_shards, shards_of

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def packed(remote_set: Any) -> Any:
    return remote_set


def test_a_failing_network_is_tried_again(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(number: int, path: str, data: bytes) -> bytes:
        if number % 3:
            raise ConnectionResetError("reset by peer")
        return data

    broken = break_reads(monkeypatch, fail)
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path)
    assert_same(list(data), batches(PackedDataset(packed.path, 0, 2)))
    # The manifest says where the set's version lies, and is read there: here, where it has no versions, twice.
    assert broken.num_reads == 3 * (4 + len(shards_of(packed)))


def test_a_network_that_stays_away_is_named(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(number: int, path: str, data: bytes) -> bytes:
        if path.endswith("shard-00000.arrow"):
            raise TimeoutError("no answer")
        return data

    broken = break_reads(monkeypatch, fail)
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path)
    with pytest.raises(RemoteError) as error:
        list(data)
    shard = next(s["path"] for s in shards_of(packed) if s["path"] in str(error.value))
    assert str(error.value) == (
        f"'{memory[0]}/{shard}' could not be read in 6 tries (TimeoutError: no answer); check the network and the "
        "address, then run again"
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
    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, verify=verify)
    i = next(i for i in range(len(data)) if data._place.rows.row(i).shard >= 0)
    if times == 1:
        assert data[i]["pack_id"] >= 0
        return
    with pytest.raises(FormatError) as error:
        data[i]
    xxh3 = xxhash.xxh3_128_hexdigest(b"x" * shard["num_bytes"])
    why = f"its checksum is {xxh3}, hbpack.json says {shard['xxh3']}"
    assert str(error.value) == (f"shard '{memory[0]}/{shard['path']}' is damaged ({why}); copy the set again")


def test_a_damaged_file_in_the_cache_is_fetched_again(packed: Any, memory: Any, tmp_path: Path) -> None:
    expected = batches(PackedDataset(packed.path, 0, 2))
    list(PackedDataset(memory[0], 0, 2, cache_dir=tmp_path))
    for path in cached(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert_same(list(PackedDataset(memory[0], 0, 2, cache_dir=tmp_path, verify="lazy")), expected)


@pytest.mark.parametrize("times", [2, 6])
def test_a_download_that_ends_early_is_tried_again(
    packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any, times: int
) -> None:
    shard, short = shards_of(packed)[0], []

    def fail(number: int, path: str, data: bytes) -> bytes:
        if path.endswith(shard["path"]) and len(short) < times:
            short.append(path)
            return data[:-1]
        return data

    break_reads(monkeypatch, fail)
    options: Any = {"cache_dir": tmp_path, "verify": "full"}
    if times == 2:
        assert_same(list(PackedDataset(memory[0], 0, 2, **options)), batches(PackedDataset(packed.path, 0, 2)))
        return
    with pytest.raises(RemoteError) as error:
        PackedDataset(memory[0], 0, 2, **options)
    n = shard["num_bytes"]
    assert str(error.value) == (
        f"'{memory[0]}/{shard['path']}' could not be read in 6 tries (EOFError: got {n - 1} bytes for bytes 0 to "
        f"{n}); check the network and the address, then run again"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_disk_that_harms_the_cache_is_tried_twice(
    packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any, times: int
) -> None:
    """Each time after a shard came whole."""
    shard, harmed, whole = shards_of(packed)[0], [], FileCache.open

    def harm(cache: FileCache, name: str, *args: Any) -> Any:
        file = whole(cache, name, *args)
        if name.startswith(shard["xxh3"]) and len(harmed) < times:
            harmed.append(name)
            file.path.write_bytes(b"x" * shard["num_bytes"])
        return file

    monkeypatch.setattr(FileCache, "open", harm)
    options: Any = {"cache_dir": tmp_path, "verify": "full"}
    if times == 1:
        assert_same(list(PackedDataset(memory[0], 0, 2, **options)), batches(PackedDataset(packed.path, 0, 2)))
        return
    with pytest.raises(FormatError, match=r"is damaged \(its checksum is .*\); copy the set again$"):
        PackedDataset(memory[0], 0, 2, **options)
    assert cached(tmp_path) == []


def test_a_copy_that_is_damaged_again_does_not_stay(
    packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Another process would read it."""
    shard, whole = shards_of(packed)[0], FileCache.open

    def harm(cache: FileCache, name: str, *args: Any) -> Any:
        file = whole(cache, name, *args)
        if name.startswith(shard["xxh3"]):
            file.path.write_bytes(b"x" * shard["num_bytes"])
        return file

    monkeypatch.setattr(FileCache, "open", harm)
    with pytest.raises(FormatError, match=r"is damaged \(.*\); copy the set again$"):
        list(PackedDataset(memory[0], 0, 2, cache_dir=tmp_path))
    assert not [path for path in cached(tmp_path) if path.name.startswith(shard["xxh3"])]


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_goes_while_it_is_opened_is_fetched_again_once(
    packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any, times: int
) -> None:
    gone, memory_map = [], pa.memory_map

    def lose(path: str) -> Any:
        if len(gone) < times:
            gone.append(path)
            Path(path).unlink()
        return memory_map(path)

    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path)
    monkeypatch.setattr(pa, "memory_map", lose)
    if times == 1:
        found = list(data)
        monkeypatch.undo()
        assert_same(found, batches(PackedDataset(packed.path, 0, 2)))
        return
    with pytest.raises(FormatError, match=r"is missing; copy the set again$"):
        list(data)


def test_damage_in_the_store_and_missing_files(packed: Any, memory: Any, tmp_path: Path) -> None:
    url, system, root = memory
    shard = shards_of(packed)[0]
    whole = system.cat_file(f"{root}/{shard['path']}")
    begin = f"shard '{url}/{shard['path']}' is damaged ("

    def message() -> str:
        with pytest.raises(FormatError) as error:
            PackedDataset(url, 0, 2, cache_dir=tmp_path / uuid4().hex, verify="full")
        return str(error.value)

    system.pipe_file(f"{root}/{shard['path']}", whole[:-1])
    n = len(whole)
    assert message() == f"{begin}{n - 1} bytes, hbpack.json says {n}); copy the set again"
    system.rm_file(f"{root}/{shard['path']}")
    assert message() == f"shard '{url}/{shard['path']}' is missing; copy the set again"
    system.rm_file(f"{root}/ranks/epoch-000/rank-00000.arrow")
    assert message() == f"'{url}/ranks/epoch-000/rank-00000.arrow' is missing; copy the set again"
    system.rm_file(f"{root}/hbpack.json")
    assert message().startswith(f"'{url}' holds no hbpack.json, so it is not a packed set, or not a finished one")


@pytest.mark.parametrize("verify", ["lazy", "full"])
def test_a_damaged_local_shard_is_found(packed: Any, tmp_path: Path, verify: Any) -> None:
    folder = Path(shutil.copytree(packed.path, tmp_path / "out"))
    entry = shards_of(packed)[0]
    shard = folder / entry["path"]
    data = bytearray(shard.read_bytes())
    ids = pa.ipc.open_file(bytes(data)).get_batch(0).column("input_ids").values
    data[data.find(ids.buffers()[1].to_pybytes()[:64]) + 8] ^= 1
    shard.write_bytes(data)
    begin, end = (
        f"shard {str(shard)!r} is damaged (",
        "); run hbpack write, which writes it again",
    )
    if verify == "full":
        with pytest.raises(FormatError) as error:
            PackedDataset(folder, 0, 2, verify=verify)
        xxh3 = xxhash.xxh3_128_hexdigest(bytes(data))
        assert str(error.value) == f"{begin}its checksum is {xxh3}, hbpack.json says {entry['xxh3']}{end}"
        return
    errors = set()
    for rank in range(2):
        dataset = PackedDataset(folder, rank, 2, verify=verify)
        for i in range(len(dataset)):
            try:
                dataset[i]
            except FormatError as error:
                errors.add(str(error))
    assert len(errors) == 1
    assert re.fullmatch(
        re.escape(f"{begin}the checksum of row 0 is ") + r"\w{16}, not \w{16} as stored" + re.escape(end), errors.pop()
    )


def test_a_bad_set_does_not_spoil_the_cache(packed: Any, memory: Any, tmp_path: Path) -> None:
    """Its manifest claims the checksums of a good set's shards for other bytes, and turns checks off."""
    url, system, root = memory
    good = {shard["path"]: system.cat_file(f"{root}/{shard['path']}") for shard in shards_of(packed)}
    for path, data in good.items():
        system.pipe_file(f"{root}/{path}", bytes(byte ^ 1 for byte in data))
    with pytest.raises(FormatError, match=r"is damaged \(its checksum is .*\); copy the set again"):
        list(PackedDataset(url, 0, 2, cache_dir=tmp_path, verify="none"))
    assert cached(tmp_path) == []
    for path, data in good.items():
        system.pipe_file(f"{root}/{path}", data)
    expected = batches(PackedDataset(packed.path, 0, 2))
    assert_same(list(PackedDataset(url, 0, 2, cache_dir=tmp_path, verify="none")), expected)


def test_a_checksum_is_not_a_way_out_of_the_cache(packed: Any, memory: Any, tmp_path: Path) -> None:
    url, system, root = memory
    manifest = json.loads(system.cat_file(f"{root}/hbpack.json"))
    manifest["groups"][0]["shards"][0]["xxh3"] = "../victim"
    write_manifest(tmp_path / "hbpack.json", manifest)
    system.pipe_file(f"{root}/hbpack.json", (tmp_path / "hbpack.json").read_bytes())
    with pytest.raises(FormatError, match=r"xxh3 is '../victim', not an xxh3-128 in hex\); copy the set again$"):
        PackedDataset(url, 0, 2, cache_dir=tmp_path / "cache", verify="none")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_cache_disk(packed: Any, memory: Any, tmp_path: Path, monkeypatch: Any, number: int) -> None:
    def full(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    data = PackedDataset(memory[0], 0, 2, cache_dir=tmp_path)
    shard = next_shards(packed, PackedDataset(packed.path, 0, 2), 0, 1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1234))
        with pytest.raises(RemoteError) as error:
            list(data)
    assert str(error.value) == (
        f"the disk of the cache {str(tmp_path)!r} is full: a shard needs {shard['num_bytes']:,} bytes there and 1,234 "
        "are free; make room, lower cache_bytes, or give another cache_dir"
    )
    assert cached(tmp_path) == []
    assert_same(list(data), batches(PackedDataset(packed.path, 0, 2)))
