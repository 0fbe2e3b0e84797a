"""The guard of output folders: nobody else's files, one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from packer_cli.cli.console import show_progress
from packer_cli.cli.main import main
from packer_cli.errors import BusyError, OutputError, RunError
from packer_cli.folder_lock import LOCK_NAME, TaskLock, add_note, hold_folder, lock_folder, waiting
from tests.cli_runner import HBPACK, run


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
    other = "from packer_cli.folder_lock import *\nwith hold_folder(Path('.'), lambda names: True): pass"
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
        assert len(calls) == 3  # Also one of those who look for other holders.
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


@pytest.mark.parametrize("task", [None, TaskLock("write", 3)])
def test_a_lock_that_is_a_link(tmp_path, task):
    """A set from somebody else may have a link in place of a lock; what it leads to stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("do not empty")
    folder = tmp_path / "set"
    folder.mkdir()
    link = folder / (LOCK_NAME if task is None else task.name)
    link.symlink_to(precious)
    with pytest.raises(OutputError) as caught, lock_folder(folder, task):
        pass
    assert str(caught.value) == (
        f"'{link}' is a link to '{precious}', and hbpack writes through none; remove the link"
    )
    assert precious.read_text() == "do not empty"
    link.unlink()
    with lock_folder(folder, task):
        assert link.exists()
        if task is not None:
            link.unlink()
            link.symlink_to(precious)
            with pytest.raises(OutputError):
                add_note(folder, task, "word")
    assert precious.read_text() == "do not empty"


@pytest.mark.parametrize("command", [["write"], ["tokenize", "data.jsonl", "--tokenizer", "none", "--output"]])
def test_a_command_in_a_folder_with_a_link(tmp_path, command):
    (tmp_path / "precious").write_text("do not empty")
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_NAME).symlink_to("../precious")
    done = subprocess.run([*HBPACK, *command, "out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert (tmp_path / "precious").read_text() == "do not empty"


@contextmanager
def held_for(folder, seconds):
    """Another thread holds the folder, for so long or until the block ends."""
    has_begun, has_ended = threading.Event(), threading.Event()

    def hold():
        with lock_folder(folder):
            has_begun.set()
            has_ended.wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def test_a_run_waits_for_another(tmp_path, capsys):
    show_progress()
    with held_for(tmp_path, 0.8), waiting(30), lock_folder(tmp_path):
        assert not (tmp_path / "a").exists()
    place = f"process {os.getpid()} on {socket.gethostname()}"
    assert capsys.readouterr().err == f"waiting up to 30.0 s for {place} to end, which writes to {tmp_path}\n"


def test_a_run_waits_only_so_long(tmp_path):
    begin = time.monotonic()
    with held_for(tmp_path, 60), waiting(0.6), pytest.raises(BusyError), lock_folder(tmp_path):
        pass
    assert 0.6 < time.monotonic() - begin < 10
    begin = time.monotonic()
    with held_for(tmp_path, 60), pytest.raises(BusyError), lock_folder(tmp_path):
        pass
    assert time.monotonic() - begin < 0.6


def test_what_was_written_meanwhile_is_seen(tmp_path):
    """A folder that was empty may belong to something else after the wait."""
    threading.Timer(0.2, (tmp_path / "other").touch).start()
    with (
        held_for(tmp_path, 0.5),
        waiting(30),
        pytest.raises(OutputError, match="holds something else"),
        hold_folder(tmp_path, theirs),
    ):
        pass


def test_a_command_waits(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    words = ("tokenize", tmp_path / "data.jsonl", "--tokenizer", "none", "--output", tmp_path / "out", "--wait")
    with held_for(tmp_path / "out", 60):
        done = run(main, *words, "1s")
    assert done.code == os.EX_TEMPFAIL
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["waiting", "error:"]
    done = run(main, *words, "soon")
    wrong = "'soon' is not a number of seconds; write for example 30s, 5m or 2h"
    assert done == (2, "", f"error: invalid value for '--wait': {wrong}; see hbpack tokenize --help\n")
