"""The output folder: that it is new, or of an earlier run of the same export."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from packer_cli.errors import OutputError
from packer_cli.export.job import WORK
from packer_cli.files import LOCK_NAME, is_temporary

NAME = ".hbpack-export.json"
"""Says of which set, and with which options, an export is; hidden, because readers take visible files for data."""


def check_folder(folder: Path, header: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but an earlier run of the same export.

    Args:
        header: what decides the bytes, and its fingerprint.

    Raises:
        OutputError
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} is a file; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output folder {str(folder)!r}: {str(there)!r} cannot be written to; name another")
    if there != folder:
        return
    entries = sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME and not is_temporary(path.name))
    earlier = read_json(folder / NAME) or read_json(folder / WORK / NAME)
    if not earlier:
        if entries not in ([], [WORK]):
            raise OutputError(
                f"output folder {str(folder)!r} holds something else ({', '.join(entries[:3])}); "
                "name an empty or a new folder"
            )
        return
    what = _difference(earlier, header)
    if what:
        raise OutputError(
            f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        )


def _difference(earlier: dict[str, Any], header: dict[str, Any]) -> str | None:
    """In what an earlier export differs from one that is asked for."""
    if earlier.get("set_fingerprint") != header["set_fingerprint"]:
        return "of another packed set"
    if earlier.get("format") != header["format"]:
        return f"to {earlier.get('format')}"
    for key in ("groups", "order", "epoch", "shard_size"):
        value = earlier.get(key)
        if value != header[key]:
            return f"with --{key.replace('_', '-')} {','.join(value) if isinstance(value, list) else value}"
    return None if earlier.get("fingerprint") == header["fingerprint"] else "of another release"


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
