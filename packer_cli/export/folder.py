"""The header of an export, which says what decides its bytes, and whether a folder holds the same export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli.errors import OutputError
from packer_cli.format.checksums import require_damage

NAME = ".hbpack-export.json"
"""The header and the files of a finished export. Hidden, since readers take visible files for data."""
WORK = ".export"
"""Folder in an unfinished export for its header, the markers of finished parts, and files that parts share."""


def is_same_export(folder: Path, entries: list[str], header: dict[str, Any]) -> bool:
    """Whether an earlier run of the same export wrote a folder.

    Args:
        header: what decides the bytes, and its fingerprint.

    Raises:
        OutputError: the folder holds another export.
    """
    earlier = read_json(folder / NAME) or read_json(folder / WORK / NAME)
    if not earlier:
        return entries == [WORK]
    what = _difference(earlier, header)
    if what:
        raise OutputError(
            f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        )
    return True


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
    if earlier.get("loss_weights") != header.get("loss_weights"):
        return f"{'with' if earlier.get('loss_weights') else 'without'} loss weights"
    return None if earlier.get("fingerprint") == header["fingerprint"] else "of another release"


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        require_damage(error)
        return None
    return value if isinstance(value, dict) else None
