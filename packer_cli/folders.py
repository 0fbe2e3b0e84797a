"""The guard of output folders: one run at a time writes to a folder, and only if nothing in it is somebody else's."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packer_cli.errors import OutputError, RunError
from packer_cli.files import is_temporary
from packer_cli.remote.lock import hold_lock
from packer_cli.remote.path import RemotePath, is_remote

LOCK_NAME = ".hbpack.lock"
"""File in an output folder while a run writes there. A killed run leaves it, unlocked, and it hinders nobody."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def hold_folder(folder: Path, is_ours: Callable[[list[str]], bool]) -> Iterator[None]:
    """Check an output folder, and lock it against other runs while the block runs.

    Args:
        is_ours: whether an earlier run wrote these entries of the folder; not called for an empty or a new folder.

    Raises:
        OutputError: the folder cannot be written to, or holds something else.
        RunError: another run is writing to it.
    """
    entries = _entries(folder)
    if entries and not is_ours(entries):
        raise OutputError(
            f"output folder {str(folder)!r} holds something else ({', '.join(entries[:3])}); "
            "name an empty or a new folder"
        )
    with lock_folder(folder):
        yield


def _entries(folder: Path) -> list[str]:
    """The names in a folder, sorted, without what a killed run may leave; none if it does not exist yet.

    Raises:
        OutputError: it cannot be made, or written to.
    """
    if is_remote(folder):
        names = [path.name for path in folder.iterdir()]
        return sorted(name for name in names if not name.startswith(LOCK_NAME))
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} is a file; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} cannot be written to; name another")
    names = [path.name for path in folder.iterdir()] if there == folder else []
    return sorted(name for name in names if name != LOCK_NAME and not is_temporary(name))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a folder for this process while the block runs; make it, and remove it again where it stays empty.

    The lock is `flock` on a file in the folder: it ends with the process that holds it, however that ends. A file
    system that knows no locks goes without.

    A remote folder has an object in place of the file, see `packer_cli.remote.lock`.

    Raises:
        RunError: another process holds it.
    """
    if isinstance(folder, RemotePath):
        with hold_lock(folder, LOCK_NAME):
            yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_NAME
    descriptor = _lock(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # While it is still held: nobody else can hold this file.
        os.close(descriptor)
        with suppress(OSError):
            for new in made:
                new.rmdir()


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise RunError(
                    f"output folder {str(path.parent)!r}: another hbpack run writes to it; wait until that has ended, "
                    "or name another folder"
                ) from None
            error.filename = str(path.parent)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # Its holder removed it after it was opened here.
