"""Records of an export: its header, from the start, and its listing, at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from packer_cli.format.checksums import require_damage

NAME = ".hbpack-export.json"
"""The listing of a finished export. Hidden, since readers take visible files for data."""
WORK = ".export"
"""Folder in an unfinished export for its header, the markers of finished parts, and pieces of files."""


class ExportHeader(TypedDict):
    """Facts that decide every byte of an export, with what `Format.describe` gives. As JSON in the listing."""

    export_version: int
    format: str
    set_fingerprint: str
    groups: list[str]
    """Names."""
    order: str
    epoch: int | None
    shard_size: int
    """Approximate bytes of a part."""
    loss_weights: NotRequired[bool]
    """Whether the weights of loss tokens are written; of a set that has any."""
    package: NotRequired[str | None]
    """Who brings the format, if it is not hbpack's own."""
    fingerprint: str


class ExportListing(ExportHeader):
    """Listing of a finished export."""

    hbpack_version: str
    num_rows: int
    num_samples: int
    num_tokens: int
    capacity: int
    parts: list[dict[str, int]]
    """Facts that `Format.write_part` gave."""
    files: list[Mapping[str, Any]]
    """Files as `FileInfo` describes them: those of the parts in order, then the others."""


def count_files(listing: ExportListing) -> tuple[int, int]:
    """Count (files, bytes) of an export."""
    files = listing["files"]
    return len(files), sum(file["num_bytes"] for file in files)


def read_listing(folder: Path) -> ExportListing | None:
    """Read the listing of the finished export in a folder; None if there is none."""
    return read_record(folder / NAME)


def read_record(path: Path) -> ExportListing | None:
    """Read a listing, or the header of an unfinished export, which has no more; None if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        require_damage(error)
        return None
    return cast("ExportListing", value) if isinstance(value, dict) else None
