from __future__ import annotations

import errno
import os
from threading import Event

import pytest

from packer_cli import files


def test_a_file_is_synced_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SYNC_BYTES", 10)
    synced = Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), synced.set()))
    path = tmp_path / "file"
    with files.atomic_file(path) as file:
        file.write(b"x" * 40_000)
        assert synced.wait(60), "the first sync comes before the end"
        file.write(b"x" * 60_000)
    assert path.read_bytes() == b"x" * 100_000


def test_an_early_sync_that_fails_fails_the_file(tmp_path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_SYNC_BYTES", 10)
    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "file"
    with (
        pytest.raises(OSError, match="No space left on device") as error,
        files.atomic_file(path) as file,
    ):
        file.write(b"x" * 20)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())
