"""Checks the output folder: it must be new, or from an earlier run of the same export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli.errors import OutputError
from packer_cli.export.job import WORK
from packer_cli.files import is_temporary
from packer_cli.folders import holds_something_else, writable_entries

NAME = ".hbpack-export.json"
"""Names the set and the options of an export. Hidden, since readers take visible files for data."""


def check_folder(folder: Path, header: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but an earlier run of the same export.

    Args:
        header: what decides the bytes, and its fingerprint.

    Raises:
        OutputError
    """
    entries = [name for name in writable_entries(folder) if not is_temporary(name)]
    if not entries:
        return
    earlier = read_json(folder / NAME) or read_json(folder / WORK / NAME)
    if not earlier:
        if entries != [WORK]:
            raise holds_something_else(folder, entries)
        return
    what = _difference(earlier, header)
    if what:
        raise OutputError(
            f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        )


def _difference(earlier: dict[str, Any], header: dict[str, Any]) -> str | None:
    """How an earlier export differs from the requested one."""
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
    """Read a JSON object; None if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
