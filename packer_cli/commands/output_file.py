"""The file that a command writes: whether it may."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from packer_cli.errors import OutputError
from packer_cli.remote.path import as_path, is_remote


def output_file(name: str, what: str, is_own: Callable[[Path], bool] | None, *, option: str = "--output") -> Path:
    """Return the path of the file to write. A file that exists is replaced if an earlier run wrote it.

    Args:
        what: a name for messages, such as `profile.json`; the part before the dot is the word for the file.
        is_own: whether an earlier run wrote a file; None for files that people edit, which are never replaced.

    Raises:
        OutputError: the path is a folder or another file, or nothing can be written there.
    """
    path, kind = as_path(name), what.partition(".")[0]
    is_here = not is_remote(path)
    reason = "is in a folder that does not exist" if is_here and not path.parent.is_dir() else ""
    if path.exists() and not path.is_file():
        reason = "is a folder" if path.is_dir() else "is not a regular file"
    if reason:
        raise OutputError(f"{option}: {name!r} {reason}; name a file, such as {what}")
    if is_here and not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option}: {name!r} is in a folder that cannot be written to; name a file in another")
    if is_own is None and path.exists():
        raise OutputError(f"{option}: {name!r} already exists; remove it, or name another file")
    if is_own is not None and path.exists() and not is_own(path):
        raise OutputError(f"{option}: {name!r} already exists and is not a {kind}; name another file")
    return path


def begins_with(mark: bytes) -> Callable[[Path], bool]:
    """Return a function that tells whether a file begins with these bytes."""

    def is_own(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark

    return is_own
