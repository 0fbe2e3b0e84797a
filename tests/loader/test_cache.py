"""The cache of files on this node: its bound, what is left of a failed fetch, and processes that share it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from packer_cli.remote.file_cache import FileCache
from tests.loader.remote import cached


def test_what_is_read_stays_and_the_bound_gives_way_with_a_warning(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 25)

    def fill(descriptor: int) -> None:
        os.pwrite(descriptor, b"x" * 10, 0)

    one, two = cache.open("one", 10, fill), cache.open("two", 10, fill)
    with pytest.warns(UserWarning, match="exceeds cache_bytes=25"):
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


def test_processes_that_share_a_cache_warn_once(tmp_path: Path) -> None:
    """All ranks of a node, and the workers of each, meet the same; a later run is warned again."""

    def warnings_of(name: str) -> int:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")  # As if each call were of a new process.
            kept.append(FileCache(tmp_path, 5).open(name, 10, lambda descriptor: None))
        return len(found)

    kept: list[Any] = []
    assert [warnings_of(name) for name in ("one", "two", "three")] == [1, 0, 0]
    os.utime(tmp_path / ".warned", (1, 1))
    assert [warnings_of(name) for name in ("four", "five")] == [1, 0]


def test_the_ranks_of_a_node_and_their_workers_keep_the_bound(tmp_path: Path) -> None:
    """Even if 64 processes write at the same pace, so that all see to the bound at the same time."""
    size = 16 << 10
    caches = [FileCache(tmp_path, 2048 * size) for _ in range(64)]
    most = 0
    for turn in range(50):
        for number, cache in enumerate(caches):
            file = cache.open_sparse(f"{turn}-{number}.ranges", size)
            assert file.descriptor is not None
            cache.write(file.descriptor, b"x" * size, 0)
            file.close()
        most = max(most, sum(512 * path.stat().st_blocks for path in cached(tmp_path)))
    assert 0.9 < most / (2048 * size) < 1.01


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
