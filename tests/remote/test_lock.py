"""The lock on a remote folder: of two runs one is refused, and one that died hinders nobody for long."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from packer_cli.cli.console import show_progress
from packer_cli.errors import BusyError, RunError
from packer_cli.folder_lock import TaskLock, find_holders, hold_folder, lock_folder, waiting
from packer_cli.remote import lock
from packer_cli.remote.lock import LockHolder, RemoteLock
from packer_cli.remote.path import RemotePath

NAME = ".hbpack.lock"


@pytest.fixture(params=["s3", "memory"])
def folder(request: Any) -> RemotePath:
    if request.param == "s3":
        return request.getfixturevalue("bucket") / "out"
    return RemotePath(f"memory://lock-{time.monotonic_ns()}/out")


def held_by(folder: RemotePath, **changes: Any) -> LockHolder:
    """Put there the lock of another process of this machine, which runs."""
    other = replace(LockHolder("token", socket.gethostname(), os.getppid(), time.time()), **changes)
    (folder / NAME).write_bytes(other.encode())
    return other


def test_one_of_many_gets_it(folder):
    locks = [RemoteLock(folder, NAME) for _ in range(8)]
    results: list[Any] = [None] * 8
    start = threading.Barrier(8)

    def take(number: int) -> None:
        start.wait()
        results[number] = locks[number].take()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(None) == 1
    winner = results.index(None)
    assert {holder.token for holder in results if holder} == {locks[winner]._ours.token}
    locks[winner].release()
    assert locks[winner - 1].take() is None
    locks[winner - 1].release()
    assert folder.find() == {}


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage says, too, that what claims so was written long ago."""
    monkeypatch.setattr(lock, "_server_age", lambda path: 1e6)


@pytest.mark.usefixtures("long_ago")
@pytest.mark.parametrize("changes", [{"time": 0.0}, {"host": "elsewhere", "time": 1e9}, {"pid": 2**22 - 3}])
def test_the_lock_of_a_run_that_died_is_taken_over_by_one(folder, changes):
    held_by(folder, **changes)
    first, second = RemoteLock(folder, NAME), RemoteLock(folder, NAME)
    assert first.take() is None
    assert second.take() == first._ours
    first.release()
    assert folder.find() == {}


@pytest.mark.parametrize("changes", [{}, {"host": "elsewhere", "pid": 2**22 - 3}])
def test_the_lock_of_a_run_that_lives_is_not(folder, changes):
    other = held_by(folder, **changes)
    mine = RemoteLock(folder, NAME)
    assert mine.take() == other
    mine.release()
    assert (folder / NAME).exists()


@pytest.mark.usefixtures("long_ago")
def test_a_takeover_that_died_hinders_nobody(folder):
    held_by(folder, time=0.0)
    dead = LockHolder("other", "elsewhere", 1, 0.0)
    (folder / f"{NAME}.token").write_bytes(dead.encode())
    mine = RemoteLock(folder, NAME)
    assert mine.take() is None
    mine.release()
    assert folder.find() == {}


def test_it_is_renewed(folder, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED", 0.05)
    with lock_folder(folder):
        before = lock._read(folder / NAME)
        deadline = time.monotonic() + 20
        while lock._read(folder / NAME).time == before.time:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_run_that_lost_its_lock_ends(folder, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED", 0.05)

    def lose() -> None:
        for _ in range(200):  # Its own lock may be renewed in the same moment.
            held_by(folder)
            time.sleep(0.1)

    with pytest.raises(RunError) as caught, lock_folder(folder):
        lose()
    assert str(caught.value) == (
        f"output folder {str(folder)!r}: another hbpack run has taken it over, because this one was suspended or cut "
        "off; run again when that has ended"
    )
    assert lock._read(folder / NAME).token == "token"


def test_a_command_that_lost_its_lock_says_so(folder, monkeypatch, hbpack, repo):
    monkeypatch.setattr(lock, "RENEWED", 0.05)

    def lose(*_: Any, **options: Any) -> None:
        for _ in range(200):  # Its own lock may be renewed in the same moment.
            held_by(folder)
            time.sleep(0.1)

    monkeypatch.setattr("packer_cli.commands.tokenize.StoreOutput.write_share", lose)
    sample = repo / "examples" / "sample"
    words = [sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--output", folder, "--workers", 1]
    message = (
        f"error: output folder '{folder}': another hbpack run has taken it over, because this one was suspended or "
        "cut off; run again when that has ended\n"
    )
    assert hbpack("tokenize", *words) == (os.EX_TEMPFAIL, "", message)


def test_so_does_one_that_ignores_ctrl_c_as_in_the_background_of_a_shell(bucket):
    code = (
        "import sys, time\nfrom packer_cli.folder_lock import lock_folder\nfrom packer_cli.remote import lock\n"
        "from packer_cli.remote.path import as_path\nlock.RENEWED = 0.05\n"
        "with lock_folder(as_path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(bucket)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n", process.communicate()
    while process.poll() is None:  # Its own lock may be renewed in the same moment.
        held_by(bucket)
        time.sleep(0.1)
    _, stderr = process.communicate()
    assert "another hbpack run has taken it over" in stderr
    assert lock._read(bucket / NAME).token == "token"


def test_tasks_of_an_array_share_the_folder_and_runs_do_not(folder, monkeypatch):
    monkeypatch.setattr("packer_cli.folder_lock._TASK_PATIENCE", 0.1)
    monkeypatch.setattr("packer_cli.folder_lock._PATIENCE", 0.1)
    first, second = TaskLock("write", 0), TaskLock("write", 1)
    with lock_folder(folder, first), lock_folder(folder, second):
        assert [*find_holders(folder)] == [first, second]
        for other in (None, first, TaskLock("tokenize", 3)):
            with pytest.raises(BusyError), lock_folder(folder, other):
                raise AssertionError
        assert [*find_holders(folder)] == [first, second]
    with lock_folder(folder):
        assert [*find_holders(folder)] == [None]
        with pytest.raises(BusyError), lock_folder(folder, first):
            raise AssertionError
    assert folder.find() == {}


@pytest.mark.usefixtures("long_ago")
def test_a_run_removes_the_locks_of_killed_tasks(folder):
    other = LockHolder("token", "elsewhere", 1, 0.0)
    (folder / f"{NAME}.write.3").write_bytes(other.encode())
    assert find_holders(folder) == {}
    with lock_folder(folder):
        pass
    assert folder.find() == {}


def test_a_killed_process_holds_nothing(bucket):
    code = (
        "import sys, time\nfrom packer_cli.folder_lock import lock_folder\n"
        "from packer_cli.remote.path import as_path\n"
        "with lock_folder(as_path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(bucket)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(BusyError) as caught, lock_folder(bucket):
        raise AssertionError
    assert re.fullmatch(
        rf"output folder '{bucket}': another hbpack run writes to it \(process {process.pid} on .+, seen \d+ s ago\); "
        "wait until that has ended, or name another folder",
        str(caught.value),
    )
    process.kill()
    process.communicate()
    with lock_folder(bucket):
        pass


def test_a_lock_that_is_released_between_two_looks(bucket: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was there when it should be created may be gone when it is read."""
    path, read = bucket / "lock", RemotePath.read_bytes
    assert path.write_new(b"theirs")

    def released(self: RemotePath) -> bytes:
        monkeypatch.setattr(RemotePath, "read_bytes", read)
        path.unlink()
        return self.read_bytes()

    monkeypatch.setattr(RemotePath, "read_bytes", released)
    assert not path.write_new(b"ours")
    assert path.write_new(b"ours")
    assert not path.write_new(b"theirs")


@pytest.mark.parametrize(
    "ahead", [-130.0, *(pytest.param(ahead, marks=pytest.mark.slow) for ahead in (130.0, -7200.0, 7200.0))]
)
def test_clocks_that_differ(bucket: RemotePath, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """S3's own times decide where the clock of a machine says that a live lock has run out, or is yet to come."""
    folder = bucket / "out"
    for task in (None, TaskLock("write", 2)):
        other = replace(LockHolder("token", "elsewhere", 7, time.time() - ahead), note="word")
        (folder / (task.name if task else NAME)).write_bytes(other.encode())
        ((found, holder),) = find_holders(folder).items()
        assert (found, holder.host, holder.note) == (task, "elsewhere", "word")
        lock.remove_dead(folder, NAME)
        with pytest.raises(BusyError), lock_folder(folder):
            pass
        with monkeypatch.context() as patch:
            patch.setattr(lock, "EXPIRES", 0.5)
            time.sleep(1.1)  # The storage's times are whole seconds.
            with lock_folder(folder):  # It has not been renewed.
                pass
        assert folder.find() == {}


def test_a_probe_of_the_time_is_nobodys_file(bucket: RemotePath) -> None:
    folder = bucket / "out"
    (folder / ".clock.0123.tmp").write_bytes(b"now")
    with hold_folder(folder, lambda entries: False):
        assert len(find_holders(folder)) == 1


def test_a_run_waits_until_the_lock_of_a_killed_one_has_run_out(folder, monkeypatch, capsys):
    monkeypatch.setattr(lock, "EXPIRES", 2.0)
    show_progress()
    held_by(folder, host="elsewhere", pid=7)
    with pytest.raises(BusyError), lock_folder(folder):
        pass
    with waiting(30), lock_folder(folder):
        assert lock._read(folder / NAME).host != "elsewhere"
    assert capsys.readouterr().err.startswith("waiting up to 30.0 s for process 7 on elsewhere to end")


def test_an_object_that_another_run_has_written_stays(bucket: RemotePath) -> None:
    path = bucket / "hbpack.json"
    assert path.write_over(b"first", None)
    assert not path.write_over(b"late", None)
    seen = path.info_or_none()
    assert path.write_over(b"second", seen)
    assert path.write_over(b"second", seen)  # The answer to the first was lost.
    assert not path.write_over(b"late", seen)
    assert path.read_bytes() == b"second"
