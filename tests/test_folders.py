"""The guard of output folders: nobody else's files, one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from packer_cli.errors import OutputError, RunError
from packer_cli.folders import LOCK_NAME, hold_folder, lock_folder


def theirs(entries):
    return False


def test_an_empty_or_a_new_folder_is_anybodys(tmp_path):
    (tmp_path / ".part.arrow.1.tmp").touch()  # What a killed run leaves says nothing about the folder.
    for folder in (tmp_path, tmp_path / "a" / "b"):
        with hold_folder(folder, theirs):
            assert (folder / LOCK_NAME).exists()
    assert not (tmp_path / "a").exists()  # Nothing was written there.
    assert not list(tmp_path.iterdir())


def test_entries_decide_whose_a_folder_is(tmp_path):
    for name in ("z", "b", "a", "c"):
        (tmp_path / name).touch()
    seen = []
    with hold_folder(tmp_path, lambda entries: bool(seen.append(entries)) or True):
        pass
    assert seen == [["a", "b", "c", "z"]]
    with pytest.raises(OutputError) as caught, hold_folder(tmp_path, theirs):
        pass
    message = f"output folder '{tmp_path}' holds something else (a, b, c); name an empty or a new folder"
    assert str(caught.value) == message
    with pytest.raises(OutputError) as caught, hold_folder(tmp_path / "a" / "out", theirs):
        pass
    assert str(caught.value) == f"output folder '{tmp_path}/a/out': '{tmp_path}/a' is a file; name another"


def test_another_run_is_refused(tmp_path):
    other = "import pathlib, packer_cli.folders as f\nwith f.hold_folder(pathlib.Path('.'), lambda names: True): pass"
    command = [sys.executable, "-c", other]
    with hold_folder(tmp_path, theirs):
        (tmp_path / "file").touch()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert "BusyError: output folder '.': another hbpack run writes to it; wait until" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_what_blocks_inside_is_not_another_run(tmp_path):
    with pytest.raises(BlockingIOError), hold_folder(tmp_path, theirs):
        raise BlockingIOError(errno.EAGAIN, "busy", "elsewhere")
    with pytest.raises(RunError), lock_folder(tmp_path), hold_folder(tmp_path, theirs):
        pass


def test_a_lock_whose_file_is_gone_is_not_taken(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder may have removed it."""
    honest = fcntl.flock
    calls = []

    def flock(descriptor, operation):
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / LOCK_NAME).unlink()
        honest(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path):
        assert len(calls) == 2
        with pytest.raises(RunError), lock_folder(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_goes_without(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path / "new"), lock_folder(tmp_path / "new"):
        assert (tmp_path / "new" / LOCK_NAME).exists()
    assert not list(tmp_path.iterdir())
