"""Sets for the loader's tests, see `packed_set`: on disk and in a memory file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from tests.loader.packed_set import PackedSet, write_set


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """Four GPUs, groups of degree 1, 2 and 4, two epochs; read it, never write to it."""
    return write_set(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def own_set(tmp_path: Path) -> PackedSet:
    """A small set for tests that damage it."""
    return write_set(tmp_path / "set", [(32, 1, 20)], num_gpus=2, num_epochs=1)


@pytest.fixture(scope="session")
def make_set() -> Callable[..., PackedSet]:
    """`write_set`, for tests that need a set of their own."""
    return write_set


@pytest.fixture(scope="session")
def remote_set(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """Two GPUs, two groups, ten shards, with checksums; read it, never write to it."""
    return write_set(tmp_path_factory.mktemp("remote") / "out", [(64, 1, 300), (128, 2, 50)], num_gpus=2, num_epochs=1)


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks of `remote_set` are on this node, which therefore fetches whole shards."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.fixture
def memory(remote_set: PackedSet, one_node: None) -> Iterator[tuple[str, Any, str]]:
    """`remote_set` in a memory file system of its own: (URL, file system, path)."""
    system = fsspec.filesystem("memory")
    root = f"/set-{uuid4().hex}"
    system.put(str(remote_set.path), root, recursive=True)
    yield f"memory:/{root}", system, root
    system.rm(root, recursive=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fails is tried again at once."""
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.001)
