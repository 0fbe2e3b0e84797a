"""The versions of a packed set: where the files of each lie.

A version lies in a folder that its fingerprint names, below the set's folder, and nothing changes it there but a
repair or another number of GPUs. The set's own `hbpack.json` is a copy of the current version's manifest, which also
names that folder. It is replaced in one step, so that a reader finds the earlier version or the new one. A copy of a
version's folder is a set, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packer_cli.errors import FormatError, InputError
from packer_cli.format.checksums import require_damage
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, VALIDATION, VERSIONS_NAME
from packer_cli.format.records import read_record

_VERSION = re.compile("[0-9a-f]{32}")
_NUMBERED = re.compile("(.+)@([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A line of `versions.jsonl`, which is no part of the set's identity."""

    number: int
    """Number of the version, from 1: `SET@3` names version 3. For other numbers of GPUs it stays the same."""
    time: str
    """UTC, ISO 8601."""
    command: str
    """The `hbpack` command that made the version the current one, such as `append`."""
    folder: str
    """Folder of the version."""
    fingerprint: str
    """Fingerprint of its manifest then; another number of GPUs is another one in the same folder."""
    inputs: int
    """Number of inputs."""
    records: int
    """Number of records in them."""
    tokens: int
    """Tokens of its samples."""
    num_gpus: int
    """Number of GPUs."""
    changed: tuple[str, ...] = ()
    """The differences from the version before, as sentences."""


def read_versions(root: Path) -> list[Version]:
    """Read the lines of `versions.jsonl` in a set's folder; none where there is no such file.

    Raises:
        InputError: a line is not one of these.
    """
    file = root / VERSIONS_NAME
    try:
        lines = file.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        return [read_record(Version, json.loads(line)) for line in lines]
    except ValueError as error:
        raise InputError(f"{str(file)!r} is damaged ({error}); remove its damaged lines") from None


def set_at(path: Path) -> Path:
    """Find the folder with the files of the set that a path names: of its current version, or for `SET@3` of that one.

    The validation set of a version lies in its folder; `SET/validation` is the current one's. A path that names no
    set of versions is returned as it is: a version's own folder, a copy of one, or nothing.

    Raises:
        InputError: the set has no such version.
    """
    try:
        folder = json.loads((path / MANIFEST_NAME).read_bytes()).get("folder")
    except (FileNotFoundError, NotADirectoryError):
        return _numbered(path)
    except (OSError, ValueError, AttributeError) as error:  # Whoever reads the manifest reports the damage.
        require_damage(error)
        return path
    return path / folder if isinstance(folder, str) and _VERSION.fullmatch(folder) else path


def plan_file(path: Path) -> Path:
    """Find the file of the plan that a path names: the last plan of a set, or a version's; the file may be missing."""
    if path.suffix == ".arrow":
        return path
    own = path / PLAN_NAME
    return own if own.exists() else set_at(path) / PLAN_NAME


def _numbered(path: Path) -> Path:
    if path.name == VALIDATION and not is_in_version(path):
        return set_at(path.parent) / VALIDATION
    named = None if path.exists() else numbered(path)
    if named is None:
        return path
    root, number = named
    versions = read_versions(root)
    found = next((each for each in kept(root, versions) if each.number == number), None)
    if found is None:
        there = ", ".join(str(each.number) for each in kept(root, versions)) or "none"
        raise InputError(f"{str(root)!r} has no version {number}; it has {there}, see hbpack versions {root}")
    return root / found.folder


def numbered(path: Path) -> tuple[Path, int] | None:
    """Return the set's folder and the version's number of a name such as `SET@3`; None for other names."""
    match = _NUMBERED.fullmatch(path.name)
    return None if match is None else (path.parent / match[1], int(match[2]))


def version_beside(folder: Path, fingerprint: str, path: object) -> str | None:
    """Name another version of a set, for a loader's state, as SET@3; None if the set has and had none like that.

    Args:
        folder: of the version that is read.
        fingerprint: of the state's version, as it was planned.
        path: given for the set; one that names a version is no place to look for others.

    Raises:
        FormatError: the version was removed, or another one was named.
    """
    root, numbers = folder.parent, list[int]()
    if folder.name == fingerprint or not _VERSION.fullmatch(folder.name):  # A copy, or a validation set.
        return None
    with suppress(InputError):
        numbers = [each.number for each in read_versions(root) if each.folder == fingerprint]
    name = f"{root}@{numbers[-1]}" if numbers else str(root / fingerprint)
    if not (root / fingerprint / MANIFEST_NAME).exists():
        if not numbers:
            return None
        raise FormatError(f"{name!r}, the version of the loader state, was removed; see hbpack versions {root}")
    if str(root) != str(path).rstrip("/"):
        raise FormatError(f"the loader state is of {name!r}, and {str(path)!r} is another version: open {name!r}")
    return name


def kept(root: Path, versions: Sequence[Version]) -> list[Version]:
    """Return the versions whose folders are there and complete."""
    there = {folder.name for folder in version_folders(root) if (folder / MANIFEST_NAME).exists()}
    return [each for each in versions if each.folder in there]


def version_folders(root: Path) -> list[Path]:
    """List the folders of versions in a set's folder, complete or not, by name."""
    try:
        return sorted(path for path in root.iterdir() if _VERSION.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_in_version(folder: Path) -> bool:
    """Whether a folder is a version's, or that of its validation set."""
    return plan_base(folder) != folder


def plan_base(folder: Path) -> Path:
    """Return the folder from which the plan in a folder names its token store: of the set, or its validation plan."""
    if _is_version(folder):
        return folder.parent
    if folder.name == VALIDATION and _is_version(folder.parent):
        return folder.parent.parent / VALIDATION
    return folder


def _is_version(folder: Path) -> bool:
    """Whether a folder is a version's, and not a set's whose name happens to be like that."""
    is_named = _VERSION.fullmatch(folder.name) is not None
    return is_named and any((folder.parent / name).exists() for name in (MANIFEST_NAME, PLAN_NAME))
