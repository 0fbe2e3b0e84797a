"""Where a command writes its one file, checked before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from packer_cli.cli.command import F, option
from packer_cli.cli.param_types import LocalPath
from packer_cli.errors import OutputError


def output_file_option(default: str | None, text: str) -> Callable[[F], F]:
    """`--output FILE`, which is required without a default; `text` is its help."""
    found: Callable[[F], F] = option(
        "--output",
        "-o",
        type=LocalPath(is_output=True),
        required=default is None,
        default=default,
        show_default=default is not None,
        metavar="FILE",
        help=text,
    )
    return found


def output_file(name: str, what: str, is_own: Callable[[Path], bool] | None, *, option: str = "--output") -> Path:
    """The path of the file to write. One that exists is replaced if an earlier run wrote it.

    Args:
        what: what the file is, such as `profile.json`: the words for it, and a name for messages.
        is_own: whether a file is one of these; None for files that people edit, which are never replaced.

    Raises:
        OutputError: it is a folder or another file, or nothing can be written there.
    """
    path, kind = Path(name), what.partition(".")[0]
    reason = "is in a folder that does not exist" if not path.parent.is_dir() else ""
    if path.exists() and not path.is_file():
        reason = "is a folder" if path.is_dir() else "is not a regular file"
    if reason:
        raise OutputError(f"{option}: {name!r} {reason}; name a file, such as {what}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{option}: {name!r} is in a folder that cannot be written to; name a file in another")
    if is_own is None and path.exists():
        raise OutputError(f"{option}: {name!r} already exists; remove it, or name another file")
    if is_own is not None and path.exists() and not is_own(path):
        raise OutputError(f"{option}: {name!r} already exists and is not a {kind}; name another file")
    return path


def begins_with(mark: bytes) -> Callable[[Path], bool]:
    """Whether a file begins with these bytes."""

    def is_own(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark

    return is_own
