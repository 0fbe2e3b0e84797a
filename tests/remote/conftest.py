"""A real S3 server, and the command line against it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done, run
from tests.s3_server import S3Server, s3_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def running() -> Iterator[S3Server]:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    from packer_cli.engine.processes import end_servers

    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        end_servers()  # Workers have the environment of the process that they are forked from.
        yield server


@pytest.fixture
def s3(running: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, which this process and its children use; retries, also those of its library, come fast."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda delay, result=None: sleep(min(delay, 0.001), result))
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.001)
    monkeypatch.setattr("packer_cli.remote.system._answered", set())
    return running


_DISK = shutil.disk_usage(tempfile.gettempdir())
keeps_copies = pytest.mark.skipif(
    _DISK.free < _DISK.total // 5 + 2**30, reason="a cache would fill the disk beyond its bound"
)
"""For tests of copies of inputs, which leave a fifth of the disk free."""


@pytest.fixture
def bucket(s3: S3Server) -> RemotePath:
    """A new bucket."""
    import fsspec

    name = f"bucket-{next(_numbers)}"
    fsspec.filesystem("s3", endpoint_url=s3.url, key="key", secret="secret").mkdir(name)
    return RemotePath(f"s3://{name}")


@pytest.fixture
def hbpack() -> Callable[..., Done]:
    def call(*arguments: object) -> Done:
        return run(main, *arguments)

    return call


def upload(folder: Path, to: RemotePath) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (to / path.relative_to(folder).as_posix()).write_bytes(path.read_bytes())


def tree(folder: Any) -> dict[str, bytes]:
    """Every file's bytes, of a folder or a `RemotePath`, but of those that hold times."""
    if isinstance(folder, RemotePath):
        names = list(folder.find())
    else:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {
        name: (folder / name).read_bytes()
        for name in names
        if not name.endswith(("tokens/inputs.json", "versions.jsonl", "derived.jsonl"))
    }
