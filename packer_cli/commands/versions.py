"""`versions`, `restore` and `prune`: the versions of a set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from packer_cli.commands.arguments import StrPath
from packer_cli.commands.output_folder import APPEND_MARKER, locked_output, refuse_other, remove_validation
from packer_cli.config import WriteConfig, validate
from packer_cli.engine.array import ArrayRecords
from packer_cli.engine.progress import say, warn
from packer_cli.errors import UsageError
from packer_cli.files import intact_or_none, remove_folder
from packer_cli.format.constants import MANIFEST_NAME, SHARD_MARKERS, STORE_COPY, VALIDATION
from packer_cli.format.versions import Version, kept, numbered, read_versions, set_at, version_folders
from packer_cli.remote.file_cache import is_kept
from packer_cli.remote.path import RemotePath, as_path, is_remote, paths_below
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.versions import is_begun, make_current, take_plan
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.agreement import remove_stale
from packer_cli.tokens.derived import say_derived
from packer_cli.tokens.index import TOKENS, WORK, read_index


@dataclass(frozen=True, kw_only=True)
class ListedVersion(Version):
    """A version of a set, and what is there of it."""

    is_current: bool
    """Whether readers of the set get this version."""
    num_bytes: int | None
    """Bytes of its files, without token parts; None where the version was pruned."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Result of `hbpack versions`, `restore` and `prune`."""

    output: str
    """The set's folder, as the user named it."""
    versions: tuple[ListedVersion, ...]
    """The versions, the oldest first."""


def versions(path: StrPath) -> Versions:
    """List the versions of a packed set, the oldest first, as `hbpack versions` does. Price: a look at their files.

    Raises:
        HbpackError: there is no packed set.
    """
    root = as_path(path)
    read_manifest(root)
    lines, current = read_versions(root), set_at(root).name
    there = {folder: _num_bytes(root / folder) for folder in {each.folder for each in kept(root, lines)}}
    say_derived(root)
    last = max((i for i, each in enumerate(lines) if each.folder == current), default=None)
    listed = (
        ListedVersion(**vars(each), is_current=i == last, num_bytes=there.get(each.folder))
        for i, each in enumerate(lines)
    )
    return Versions(output=os.fspath(path), versions=tuple(listed))


def _num_bytes(folder: Path) -> int:
    if isinstance(folder, RemotePath):
        return sum(folder.find().values())
    return sum(path.stat().st_size for path in paths_below(folder) if path.is_file())


def restore(version: StrPath) -> Versions:
    """Make an earlier version of a packed set the current one, as `hbpack restore` does.

    Its plan and the index of its token store come back with it.

    Args:
        version: `"SET@N"`.

    Raises:
        HbpackError: there is no such version, or another run is writing to the set.
    """
    path = as_path(version)
    found = numbered(path)
    if found is None:
        raise UsageError(
            f"{str(version)!r} names no version of a set; name one as hbpack versions numbers them, such as OUT@3"
        )
    root, number = found
    set_at(path)  # Reports a version that is not there, before a folder that cannot be written to.
    with locked_output(root):
        home = set_at(path)
        manifest = read_manifest(home)
        if manifest.planned.sets_aside:
            refuse_other(root)
        _restore_store(home, root / TOKENS)
        if manifest.planned.sets_aside:
            take_plan(home / VALIDATION, root / VALIDATION)
        else:
            remove_validation(root)
        take_plan(home, root)
        (root / APPEND_MARKER).unlink(missing_ok=True)
        make_current(root, home, manifest, f"restore @{number}")
    return versions(str(root))


def _restore_store(home: Path, store: Path) -> None:
    """Give a token store the index that a version was made from."""
    before, index = intact_or_none(read_index, store), intact_or_none(read_index, home, STORE_COPY)
    if before is None or index is None or before.fingerprint == index.fingerprint:
        return
    missing = [part for part in index.parts if not (store / part.path).exists()]
    if missing:
        gone = f"{len(missing):,} of {counted(len(index.parts), 'part')}"
        warn(
            f"{str(store)!r} lacks {gone} of this version, and stays as it is: append and plan need what it holds now"
        )
        return
    index.write(store)


def prune(path: StrPath, *, keep: int) -> Versions:
    """Remove older versions of a packed set, and the token parts that only they use, as `hbpack prune` does.

    Args:
        path: a packed set.
        keep: versions to keep: the current one, and the newest others.

    Raises:
        HbpackError: `keep` is below 1, there is no packed set, or another run is writing to it.
    """
    validate(WriteConfig, {"keep": keep})
    root = as_path(path)
    read_manifest(root)
    with locked_output(root):
        prune_versions(root, keep)
    return versions(path)


def prune_versions(root: Path, keep: int) -> None:
    """Remove versions like `prune`, without a lock; a version that an array is writing stays."""
    newest = [set_at(root).name, *(each.folder for each in read_versions(root)[::-1])]
    stay = [*dict.fromkeys(newest)][:keep]
    gone = [home for home in version_folders(root) if home.name not in stay and is_begun(home)]
    gone = [home for home in gone if ArrayRecords(home / SHARD_MARKERS).pin() is None]
    read = [] if is_remote(root) else [home for home in gone if any(map(is_kept, home.rglob(MANIFEST_NAME)))]
    if read:
        say(f"kept {counted(len(read), 'version')} that a loader reads: {', '.join(home.name for home in read)}")
    gone = [home for home in gone if home not in read]
    num_bytes = sum(map(_num_bytes, gone))
    for home in gone:
        (home / MANIFEST_NAME).unlink(missing_ok=True)  # First, so that nobody takes the rest for a version.
        remove_folder(home)
    index = intact_or_none(read_index, root / TOKENS)
    if index is not None and not (root / TOKENS / WORK).exists():
        remove_stale(root / TOKENS, index)
    if gone:
        say(f"removed {counted(len(gone), 'older version')}, {format_bytes(num_bytes)}")


def say_older(root: Path) -> None:
    """Say how many older versions there are beside the current one, and how many bytes they hold."""
    older = [home for home in version_folders(root) if home != set_at(root)]
    if older:
        held = f"{format_bytes(sum(map(_num_bytes, older)))} in {counted(len(older), 'older version')}"
        say(f"{held}: hbpack versions {root} lists them, hbpack prune {root} --keep 1 removes them")
