"""The guard of output folders: one run at a time writes to a folder, and only if nothing in it is somebody else's.

The tasks of a job array are one run: they share the folder's lock, and each holds a lock of its own beside it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from packer_cli.errors import BusyError, OutputError
from packer_cli.files import is_temporary, no_link, remove_temporaries
from packer_cli.remote import lock as remote_lock
from packer_cli.remote.path import RemotePath, is_remote
from packer_cli.sizes import duration

LOGGER = logging.getLogger("hbpack")

LOCK_NAME = ".hbpack.lock"
"""File in an output folder while a run writes there. A killed run leaves it, unlocked, and it hinders nobody."""

_WRITES = "another hbpack run writes to it"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_PATIENCE = 0.3
"""Seconds to wait for a lock: `find_holders` takes each for a moment."""
_TASK_PATIENCE = 30.0
"""Seconds that a task of an array waits while another one completes the output."""

_MOST_NAMED = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between looks at a folder that another run holds; each pause is half as long again as the one before."""
_wait = ContextVar("wait", default=0.0)


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Let the locks of the block wait so long for a run that holds the folder."""
    before = _wait.set(seconds)
    try:
        yield
    finally:
        _wait.reset(before)


@dataclass(frozen=True)
class TaskLock:
    """The lock of one task of an array."""

    stage: str
    """Only tasks of one stage run at the same time."""
    index: int

    @property
    def name(self) -> str:
        """Name of its file in the folder."""
        return f"{LOCK_NAME}.{self.stage}.{self.index}"


@dataclass(frozen=True)
class Holder:
    """A run that writes to a folder."""

    task: TaskLock | None
    """None for a run that has the folder to itself."""
    host: str
    pid: int
    note: str = ""
    """See `add_note`."""


@contextmanager
def hold_folder(folder: Path, is_ours: Callable[[list[str]], bool], task: TaskLock | None = None) -> Iterator[None]:
    """Check an output folder, and lock it against other runs while the block runs.

    Args:
        is_ours: whether an earlier run wrote these entries of the folder; not called for an empty or a new folder.
        task: share the folder with the other tasks of an array.

    Raises:
        OutputError: the folder cannot be written to, or holds something else.
        BusyError: another run is writing to it.
    """
    require_ours(folder, is_ours)
    with lock_folder(folder, task):
        if _wait.get():  # The run that was waited for may have written something else.
            require_ours(folder, is_ours)
        yield


def require_ours(folder: Path, is_ours: Callable[[list[str]], bool]) -> None:
    """Raise OutputError for a folder that cannot be written to or holds something else; see `hold_folder`."""
    entries = entries_to_write(folder)
    if entries and not is_ours(entries):
        raise OutputError(
            f"output folder {str(folder)!r} holds something else ({', '.join(entries[:3])}); "
            "name an empty or a new folder"
        )


def entries_to_write(folder: Path) -> list[str]:
    """List the names in an output folder, as `entries_of` gives them; none if the folder does not exist yet.

    Raises:
        OutputError: it cannot be made, or written to.
    """
    there = folder
    if not is_remote(folder):
        there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
        if not there.is_dir():
            raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} is a file; name another")
        if not os.access(there, os.W_OK | os.X_OK):
            raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} cannot be written to; name another")
    return entries_of(folder) if there == folder else []


def entries_of(folder: Path) -> list[str]:
    """List the names in a folder, sorted, without what a killed run may leave."""
    names = [path.name for path in folder.iterdir()]
    return sorted(name for name in names if not name.startswith(LOCK_NAME) and not is_temporary(name))


@contextmanager
def lock_folder(folder: Path, task: TaskLock | None = None) -> Iterator[None]:
    """Keep a folder for this process while the block runs; make it, and remove it again where it stays empty.

    Afterwards temporary files go, also those of a run that was killed, unless other tasks of an array may be writing
    them. The block must have ended its workers by then.

    The locks are `flock` on files in the folder: they end with the process that holds them, however that ends. A file
    system that knows no locks goes without.

    A remote folder has objects in place of these files, see `packer_cli.remote.lock`.

    Args:
        task: keep the folder for the array, and the task for this process.

    Raises:
        BusyError: another process holds it, and has not let go in the time of `waiting`.
    """
    with ExitStack() as held:
        pauses = _pauses(folder)
        while True:
            try:
                held.enter_context(_lock_now(folder, task))
                break
            except BusyError:
                if not next(pauses, False):
                    raise
        yield


def _pauses(folder: Path | RemotePath) -> Iterator[bool]:
    """Sleep before each yield of True, as long as `waiting` says; say at first who is waited for."""
    seconds = _wait.get()
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    if seconds:
        named = [f"process {each.pid} on {each.host}" for each in find_holders(folder)[:_MOST_NAMED] if each.host]
        who = ", ".join(named) or "another hbpack run"
        LOGGER.info("waiting up to %s for %s to end, which writes to %s", duration(seconds), who, folder)
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        yield True
        pause = min(1.5 * pause, _LONGEST_PAUSE)


@contextmanager
def _lock_now(folder: Path, task: TaskLock | None) -> Iterator[None]:
    """Lock a folder, as `lock_folder`, or raise BusyError at once."""
    if isinstance(folder, RemotePath):
        with _take_remote(folder, task):
            if task is None:
                remote_lock.remove_dead(folder, f"{LOCK_NAME}.")  # While this run has the folder, no task runs.
            else:
                _refuse_other_stages(folder, task)
            yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as held:
            whole = folder / LOCK_NAME
            if task is None:
                held.callback(_remove_locks, folder, _lock(whole, fcntl.LOCK_EX, _busy(folder, _WRITES)))
                held.callback(remove_temporaries, folder)  # Those of an array may be another task's.
            else:
                held.callback(_leave, whole, _lock(whole, fcntl.LOCK_SH, _busy(folder, _WRITES)))
                path = folder / task.name
                busy = _busy(folder, f"another process runs task {task.index}")
                held.callback(_remove, path, _lock(path, fcntl.LOCK_EX, busy))
                _refuse_other_stages(folder, task)
            yield
    finally:
        with suppress(OSError):
            for new in made:
                new.rmdir()


def _take_remote(folder: RemotePath, task: TaskLock | None) -> remote_lock.RemoteLock:
    """Take the lock of a run or a task, and then look for the other kind: of two that do so, one sees the other.

    Raises:
        BusyError: another process holds it.
    """
    lock = remote_lock.RemoteLock(folder, task.name if task else LOCK_NAME)
    deadline = time.monotonic() + (_TASK_PATIENCE if task else _PATIENCE)
    while True:
        holder = lock.take()
        if holder is None:
            others = remote_lock.find_holders(folder, LOCK_NAME)
            others = {name: other for name, other in others.items() if name != lock.name}
            if LOCK_NAME not in others and (task or not others):
                return lock
            lock.release()
            holder = next(iter(others.values()))
        if time.monotonic() > deadline:
            raise _busy(folder, f"{_WRITES} (process {holder.pid} on {holder.host}, seen {holder.age:.0f} s ago)")
        time.sleep(_PATIENCE / 10)


def _busy(folder: object, what: str) -> BusyError:
    return BusyError(f"output folder {str(folder)!r}: {what}; wait until that has ended, or name another folder")


def _refuse_other_stages(folder: Path | RemotePath, task: TaskLock) -> None:
    for holder in find_holders(folder):
        if holder.task and holder.task.stage != task.stage:
            raise _busy(folder, f"tasks of hbpack {holder.task.stage} write to it")


def find_holders(folder: Path | RemotePath) -> list[Holder]:
    """Find the runs that write to a folder, as far as its file system has locks: one, or tasks by stage and index."""
    if isinstance(folder, RemotePath):
        found = [
            (name, f"{other.host} {other.pid} {other.note}")
            for name, other in remote_lock.find_holders(folder, LOCK_NAME).items()
        ]
    else:
        found = [(path.name, text) for path in folder.glob(f"{LOCK_NAME}*") if (text := _who_holds(path)) is not None]
    holders = []
    for name, text in found:
        stage, _, index = name.removeprefix(LOCK_NAME).removeprefix(".").rpartition(".")
        if name == LOCK_NAME or (stage and index.isdigit()):
            host, pid, note, *_ = [*text.split(), "", "", ""]
            task = TaskLock(stage, int(index)) if stage else None
            holders.append(Holder(task, host, int(pid) if pid.isdigit() else 0, note))
    if any(holder.task for holder in holders):
        holders = [holder for holder in holders if holder.task]
    return sorted(holders, key=lambda holder: (holder.task.stage, holder.task.index) if holder.task else ("", 0))


def add_note(folder: Path | RemotePath, task: TaskLock, word: str) -> None:
    """Let a task that this process holds say something about itself, as long as it runs."""
    if isinstance(folder, RemotePath):
        remote_lock.add_note(folder, task.name, word)
        return
    with open(folder / task.name, "a", encoding="utf-8", opener=no_link) as file:
        file.write(f"{word}\n")


def _who_holds(path: Path) -> str | None:
    """Read what a lock's holder wrote into its file; None if nobody holds the lock, or only tasks share it."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(4096).decode(errors="replace").strip()
    except OSError:
        pass
    return None


def _remove(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)  # While it is still held: nobody else can hold this file.
    os.close(descriptor)


def _remove_locks(folder: Path, descriptor: int) -> None:
    """Remove the folder's lock, and what killed tasks left: while the folder is held, none runs."""
    for path in folder.glob(f"{LOCK_NAME}.*"):
        with suppress(OSError):
            path.unlink()
    _remove(folder / LOCK_NAME, descriptor)


def _leave(path: Path, descriptor: int) -> None:
    """Let go of a shared lock; the last one removes its file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return
    except OSError:  # A file system that knows no locks.
        pass
    _remove(path, descriptor)


def _lock(path: Path, kind: int, busy: BusyError) -> int:
    deadline = time.monotonic() + (_TASK_PATIENCE if kind == fcntl.LOCK_SH else _PATIENCE)
    while True:
        descriptor = no_link(str(path), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                if time.monotonic() < deadline:
                    time.sleep(_PATIENCE / 10)
                    continue
                raise busy from None
            error.filename = str(path.parent)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                if kind == fcntl.LOCK_EX:
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
                return descriptor
        os.close(descriptor)  # Its holder removed it after it was opened here.
