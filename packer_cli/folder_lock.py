"""The guard of output folders: one run at a time writes to a folder, and only if nothing in it is somebody else's.

The tasks of a job array are one run: each holds a lock of its own, beside which no run has the folder to itself.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from packer_cli.errors import BusyError, OutputError
from packer_cli.files import is_temporary, no_link, remove_temporaries
from packer_cli.remote import lock as remote_lock
from packer_cli.remote.lock import LockHolder
from packer_cli.remote.path import RemotePath, is_remote
from packer_cli.sizes import duration

LOGGER = logging.getLogger("hbpack")

LOCK_NAME = ".hbpack.lock"
"""File in an output folder while a run writes there. A killed run leaves it, unlocked, and it hinders nobody."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_PATIENCE = 0.3
"""Seconds to wait for a lock: `find_holders` takes each for a moment."""
_TASK_PATIENCE = 30.0
"""Seconds that a task of an array waits while another one completes the output."""

_MOST_NAMED = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.03, 5.0
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


Holders = Mapping[TaskLock | None, LockHolder]
"""The processes that write to a folder, by their tasks; None for a run that has the folder to itself."""


class _Held(Exception):  # noqa: N818 - it becomes a BusyError.
    def __init__(self, task: TaskLock | None, holder: LockHolder) -> None:
        self.task, self.holder = task, holder


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
    begin, pause, seconds = time.monotonic(), _FIRST_PAUSE, _wait.get()
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(_lock_now(folder, task))
                break
            except _Held as error:
                patience = _TASK_PATIENCE if task and error.task is None else _PATIENCE
                left = begin + max(seconds, patience) - time.monotonic()
                if left <= 0:
                    raise _busy(folder, task, error) from None
            if seconds and pause == _FIRST_PAUSE:
                _say_who(folder, seconds)
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        yield


def _say_who(folder: Path, seconds: float) -> None:
    named = [f"process {each.pid} on {each.host}" for each in find_holders(folder).values() if each.host]
    who = ", ".join(named[:_MOST_NAMED]) or "another hbpack run"
    LOGGER.info("waiting up to %s for %s to end, which writes to %s", duration(seconds), who, folder)


@contextmanager
def _lock_now(folder: Path, task: TaskLock | None) -> Iterator[None]:
    """Lock a folder, as `lock_folder`, or raise `_Held` at once.

    A run or a task takes its own lock, and then looks for the others': of two that do so, one sees the other.
    """
    made = [] if is_remote(folder) else [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        name = task.name if task else LOCK_NAME
        lock = remote_lock.RemoteLock(folder, name) if isinstance(folder, RemotePath) else _FileLock(folder / name)
        if (own := lock.take()) is not None:
            raise _Held(task, own)
        with lock, ExitStack() as held:
            for other, holder in find_holders(folder).items():
                if other != task and not (task and other and other.stage == task.stage):
                    raise _Held(other, holder)
            if task is None:  # While this run has the folder, no task runs.
                _remove_dead(folder)
                held.callback(remove_temporaries, folder)  # Those of an array may be another task's.
            yield
    finally:
        with suppress(OSError):
            for new in made:
                new.rmdir()


def _busy(folder: Path, task: TaskLock | None, held: _Held) -> BusyError:
    what = "another hbpack run writes to it"
    if task and held.task:
        what = f"tasks of hbpack {held.task.stage} write to it"
    if task and held.task == task:
        what = f"another process runs task {task.index}"
    if is_remote(folder):
        what += f" (process {held.holder.pid} on {held.holder.host}, seen {held.holder.age:.0f} s ago)"
    return BusyError(f"output folder {str(folder)!r}: {what}; wait until that has ended, or name another folder")


def find_holders(folder: Path | RemotePath) -> Holders:
    """Find the runs that write to a folder, as far as its file system has locks: one, or tasks by stage and index."""
    if isinstance(folder, RemotePath):
        found: Iterable[tuple[str, LockHolder | None]] = remote_lock.find_holders(folder, LOCK_NAME).items()
    else:
        found = ((path.name, _who_holds(path)) for path in folder.glob(f"{LOCK_NAME}*"))
    holders: dict[TaskLock | None, LockHolder] = {}
    for name, holder in found:
        stage, _, index = name.removeprefix(LOCK_NAME).removeprefix(".").rpartition(".")
        if holder is not None and (name == LOCK_NAME or (stage and index.isdigit())):
            holders[TaskLock(stage, int(index)) if stage else None] = holder
    return {
        task: holders[task] for task in sorted(holders, key=lambda task: (task.stage, task.index) if task else ("", 0))
    }


def add_note(folder: Path | RemotePath, task: TaskLock, word: str) -> None:
    """Let a task that this process holds say something about itself, as long as it runs."""
    if isinstance(folder, RemotePath):
        remote_lock.add_note(folder, task.name, word)
        return
    with open(folder / task.name, "a", encoding="utf-8", opener=no_link) as file:
        file.write(f"{word}\n")


def _remove_dead(folder: Path | RemotePath) -> None:
    """Remove the locks that killed tasks left."""
    if isinstance(folder, RemotePath):
        remote_lock.remove_dead(folder, f"{LOCK_NAME}.")
        return
    for lock in map(_FileLock, folder.glob(f"{LOCK_NAME}.*")):
        with suppress(OSError, OutputError):  # Somebody else's, or a link.
            if lock.take() is None:
                lock.release()


class _FileLock:
    """A lock file, as `RemoteLock` is an object."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> LockHolder | None:
        """Take the lock, and return None; return the holder if another has the lock."""
        while True:
            descriptor = no_link(str(self._path), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(descriptor)
                    if isinstance(error, BlockingIOError):
                        return _who_holds(self._path) or LockHolder("", "", 0, time.time())
                    error.filename = str(self._path.parent)
                    raise
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
                    self._descriptor = descriptor
                    return None
            os.close(descriptor)  # Its holder removed it after it was opened here.

    def release(self) -> None:
        """Let go of the lock that was taken."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # While it is still held: nobody else can hold this file.
        os.close(self._descriptor)

    def __enter__(self) -> None:
        """Do nothing: the lock is held as long as its file is open."""

    def __exit__(self, *_: object) -> None:
        self.release()


def _who_holds(path: Path) -> LockHolder | None:
    """Read who holds a lock; None if nobody does."""
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            host, pid, note, *_ = [*file.read(4096).decode(errors="replace").split(), "", "", ""]
            return LockHolder("", host, int(pid) if pid.isdigit() else 0, time.time(), note)
    return None
