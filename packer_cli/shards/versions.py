"""The versions of a set: the making of one the current one, and the removal of those that no run completed."""

from __future__ import annotations

import datetime
import json
import os
import textwrap
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from packer_cli.errors import BusyError
from packer_cli.files import intact_or_none, link_file, remove_folder, temporary_name, write_text
from packer_cli.format.constants import (
    CURRENT,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    SHARD_MARKERS,
    STORE_COPY,
    VALIDATION,
    VERSIONS_NAME,
)
from packer_cli.format.manifest import Manifest, manifest_bytes
from packer_cli.format.records import json_values
from packer_cli.format.tokens import InputInfo
from packer_cli.format.versions import Version, read_versions, version_folders
from packer_cli.remote.path import RemotePath, is_remote
from packer_cli.shards.manifest import read_manifest, write_manifest
from packer_cli.sizes import counted
from packer_cli.tokens.index import EXCLUDED


def take_plan(folder: Path, home: Path) -> None:
    """Give the plan in a folder, with its rejected records, to the version in `home`, which has it from then on."""
    for name in (PLAN_NAME, REJECTED_NAME):
        if folder != home and (folder / name).exists():
            link_file(folder / name, home / name)


def make_current(root: Path, home: Path, manifest: Manifest, command: str) -> None:
    """Make a complete version the set's current one, in one step, and note it in `versions.jsonl`.

    Args:
        root: the set's folder; with `home` itself, a copy of a version's folder, nothing is to be done.
        command: the `hbpack` command that does so.

    Raises:
        BusyError: another run has made another version the current one of a remote set meanwhile.
    """
    if root == home:
        return
    path = root / MANIFEST_NAME
    seen = path.info_or_none() if isinstance(path, RemotePath) else None
    before = intact_or_none(read_manifest, root)
    named = replace(manifest, folder=home.name)
    if before != named and isinstance(path, RemotePath):
        if not path.write_over(manifest_bytes(named), seen):
            raise BusyError(f"another run has written {str(path)!r} meanwhile; run again")
    elif before != named:
        write_manifest(root, named)
    if not is_remote(root):
        link = temporary_name(root / CURRENT)
        with suppress(OSError):  # The file system knows no links, or the user has something of this name.
            link.symlink_to(home.name)
            os.replace(link, root / CURRENT)
        with suppress(OSError):
            link.unlink()
    versions = read_versions(root)
    last = versions[-1] if versions else None
    if last is None or (last.folder, last.fingerprint) != (home.name, manifest.fingerprint):
        is_same = last is not None and last.folder == home.name  # For another number of GPUs.
        line = Version(
            number=last.number + (not is_same) if last else 1,
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=command,
            folder=home.name,
            fingerprint=manifest.fingerprint,
            inputs=len(manifest.sources),
            records=sum(source.read.records for source in manifest.sources),
            tokens=manifest.counts.tokens,
            num_gpus=manifest.num_gpus,
            changed=tuple(differences(before, manifest)) if before else (),
        )
        write_text(root / VERSIONS_NAME, "".join(json.dumps(asdict(each)) + "\n" for each in (*versions, line)))


def differences(before: Manifest, after: Manifest) -> list[str]:
    """Say how the inputs and options of one version differ from those of another, a sentence each."""
    found = []
    old, new = ({source.name: _share(source) for source in each.sources} for each in (before, after))
    for verb, names in (("added", new.keys() - old.keys()), ("left out", old.keys() - new.keys())):
        if names:
            found.append(f"{verb} {counted(len(names), 'input')}: {_shortened(', '.join(sorted(names)))}")
    was, now = map(_num_excluded, (before, after))
    if was != now:
        found.append(f"records that --exclude leaves out: {was:,} became {now:,}")
    if before.tokenizer.fingerprint != after.tokenizer.fingerprint:
        found.append(f"another tokenizer: {after.tokenizer.name}")
    pairs = {name: (old[name], new[name]) for name in new if name in old}
    for section in ("tokens", "plan", "write"):
        was, now = (json_values(getattr(each.config, section)) for each in (before, after))
        pairs |= {name: (was.get(name), now.get(name)) for name in dict.fromkeys((*was, *now))}
    found += [f"{name}: {_shortened(a)} became {_shortened(b)}" for name, (a, b) in pairs.items() if a != b]
    return found or ["other records"] * (before.tokens_fingerprint != after.tokens_fingerprint)


def _num_excluded(manifest: Manifest) -> int:
    return sum(each.records for each in manifest.counts.reasons or () if each.reason == EXCLUDED)


def _share(source: InputInfo) -> str:
    if source.tokens is not None:
        return f"{source.tokens:,} tokens"
    return f"weight {source.weight:g}" if source.percent is None else f"{source.percent:g}%"


def _shortened(value: object) -> str:
    return textwrap.shorten(str(value), 100, placeholder="...")


_ENTRIES = (MANIFEST_NAME, PLAN_NAME, REJECTED_NAME, STORE_COPY, VALIDATION, SHARD_MARKERS, "shards", "ranks")
"""Names in a version's folder, any of which a killed run may leave."""


def is_begun(folder: Path) -> bool:
    """Whether a folder with a version's name holds a version, or what a killed run left of one."""
    return any(path.name in _ENTRIES for path in folder.iterdir())


def remove_unfinished(root: Path) -> None:
    """Remove the folders of versions that no run completed."""
    for folder in version_folders(root):
        if not (folder / MANIFEST_NAME).exists() and is_begun(folder):
            remove_folder(folder)
