"""Where a command writes its one file, checked before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from packer_cli.errors import OutputError


def output_file(name: str, what: str, is_own: Callable[[Path], bool], *, option: str = "--output") -> Path:
    """The path of the file to write. One that exists is replaced if an earlier run wrote it.

    Args:
        what: what the file is, such as `profile.json`: the words for it, and a name for messages.
        is_own: whether a file is one of these.

    Raises:
        OutputError: it is a folder or another file, or nothing can be written there.
    """
    path, kind = Path(name), what.partition(".")[0]
    if os.path.isdir(path) or not path.parent.is_dir():
        reason = "is a folder" if os.path.isdir(path) else "is in a folder that does not exist"
        raise OutputError(f"{option}: {name!r} {reason}; name a file, such as {what}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option}: {name!r} is in a folder that cannot be written to; name a file in another")
    if path.exists() and not is_own(path):
        raise OutputError(f"{option}: {name!r} already exists and is not a {kind}; name another file")
    return path


def begins_with(mark: bytes) -> Callable[[Path], bool]:
    """Whether a file begins with these bytes."""

    def is_own(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark

    return is_own
