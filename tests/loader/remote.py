"""Sets behind a URL: their batches and shards, what a cache holds, a file system that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import torch
from torch.utils.data import DataLoader

from packer_cli.loader import PackedDataset


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
    monkeypatch.setattr("packer_cli.remote.system._answered", set())
    monkeypatch.setattr(fsspec, "url_to_fs", lambda url, **_: (broken, url.removeprefix("memory:/")))
    return broken


def next_shards(packed: Any, data: PackedDataset, i: int, num: int) -> list[dict[str, Any]]:
    """The first shards from iteration `i` on, found by reading on from a folder."""
    places: dict[int, dict[str, Any]] = {}
    for batch in PackedDataset(packed.path, 0, 2).iter_from(i):
        for shard in shards_of(packed):
            if 0 <= batch["pack_id"] - shard["first_pack"] < shard["num_packs"] and len(places) < num:
                places.setdefault(shard["first_pack"], shard)
    return list(places.values())
