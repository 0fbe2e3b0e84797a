"""Whether a folder may be written to, in the words of every command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packer_cli.errors import OutputError
from packer_cli.files import LOCK_NAME


def writable_entries(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it is still to be made.

    Raises:
        OutputError: it cannot be made, or written to.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} is a file; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} cannot be written to; name another")
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME) if there == folder else []


def holds_something_else(folder: Path, entries: Sequence[str]) -> OutputError:
    """The error for a folder with files of another origin."""
    return OutputError(
        f"output folder {str(folder)!r} holds something else ({', '.join(entries[:3])}); name an empty or a new folder"
    )
