"""The output folder of the stages: whether hbpack wrote it, the plan in it, and the plan of its validation set.

The folder holds the token store and the last plan. What is written from a plan lies in the folder of a version, see
`packer_cli.format.versions`. The validation set holds the samples that `--validation` sets aside. It is a packed set
like any other, planned in `OUT/validation` from the token store of `OUT` by options that follow from those of
training, and written to the folder of the version. So all commands that read sets take `OUT/validation`, and what
plans, writes or rebalances `OUT` does so with its validation set, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from packer_cli.config import PlannedConfig, validate
from packer_cli.engine.array import ArrayRecords
from packer_cli.engine.progress import warn
from packer_cli.errors import FormatError, InputError, OutputError
from packer_cli.files import intact_or_none
from packer_cli.folder_lock import TaskLock, hold_folder, require_ours
from packer_cli.format.checksums import inside
from packer_cli.format.constants import (
    MANIFEST_NAME,
    PLAN_NAME,
    REFERENCE_FOLDER,
    REJECTED_NAME,
    VALIDATION,
)
from packer_cli.format.manifest import Manifest
from packer_cli.format.versions import is_in_version, numbered, set_at, version_folders
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.own_store import store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.shards.repair import PLAN_AGAIN
from packer_cli.tokens.index import INDEX_NAME, TOKENS, WORK

APPEND_MARKER = ".append.json"
"""File in the output folder from the beginning of an append to its end, from which a run goes on after a kill."""


def require_usable(folder: Path) -> None:
    """Raise OutputError where `locked_output` would, without making the folder."""
    refuse_part(folder)
    require_ours(folder, partial(_is_own, folder))


@contextmanager
def locked_output(folder: Path, *, has_plan: bool = False, task: TaskLock | None = None) -> Iterator[None]:
    """Check the output folder of a stage, and lock it against other runs while the block runs.

    Args:
        has_plan: whether the folder must hold a plan, rather than be new or an earlier run's. The block itself reports
        a missing plan or a read-only folder.
        task: the lock of a task, which shares the folder with the other tasks of an array.

    Raises:
        OutputError: the folder holds other files, cannot be written to, or is the validation set of another folder.
        BusyError: another run is writing to it.
    """
    refuse_part(folder)
    if has_plan and not ((folder / PLAN_NAME).exists() and (is_remote(folder) or os.access(folder, os.W_OK))):
        yield
        return
    with hold_folder(folder, lambda entries: has_plan or _is_own(folder, entries), task):
        if not is_remote(folder):
            _check_links(folder)
        yield


def _check_links(folder: Path) -> None:
    """Refuse to write through a link out of the folder, which may lead to another set's files, and no loader follows.

    Raises:
        OutputError: there is such a link.
    """
    patterns = ("", "shards", "shards/*", "ranks", "ranks/*", "ranks/*/epoch-*")
    for version in version_folders(folder):
        for path in (path for pattern in patterns for path in (version.glob(pattern) if pattern else [version])):
            try:
                inside(folder, path.relative_to(folder).as_posix())
            except ValueError:
                raise OutputError(
                    f"output folder {str(folder)!r}: {str(path)!r} is a link to {os.path.realpath(path)!r}; "
                    "remove the link, or name another folder"
                ) from None


def _is_own(folder: Path, entries: list[str]) -> bool:
    """Whether hbpack wrote this folder, finished or not."""
    tokens = folder / TOKENS
    traces = (folder / MANIFEST_NAME, folder / PLAN_NAME, tokens / INDEX_NAME, tokens / WORK)
    if any(path.exists() for path in traces):
        return True
    is_started = entries == [TOKENS] and tokens.is_dir() and not any(tokens.iterdir())
    return is_started or _holds_only_reasons(folder, entries)


def _holds_only_reasons(folder: Path, entries: list[str]) -> bool:
    """Whether there is nothing, or planning found no samples and left its reasons."""
    if not entries:
        return True
    path = folder / REJECTED_NAME
    if not path.is_file() or not {*entries} <= {REJECTED_NAME, REFERENCE_FOLDER}:
        return False
    begin = b'{"file": '
    with path.open("rb") as file:
        return file.read(len(begin)) in (b"", begin)


def require_tokens(store: Path) -> None:
    """Raise InputError if an array that makes this token store, maybe in place of an earlier one, has not ended.

    Where another run did not end, the earlier store is as it was, and a line says so.
    """
    if rest := ArrayRecords(store / WORK).unfinished():
        raise InputError(f"the token store {str(store)!r} is unfinished: {rest}")
    if (store / WORK).exists() and (store / INDEX_NAME).exists():
        warn(f"a run that would change {str(store)!r} did not end: this is what it held before")


def current_plan(folder: Path, store: Path) -> PlanHeader | None:
    """Check the finished plan of a store, and return its header; None if missing, damaged or of another store."""
    try:
        read_plan(folder / PLAN_NAME, check=True)
        header = read_plan_header(folder / PLAN_NAME)
    except (InputError, FormatError):
        return None
    is_of_store = store_of(folder, header).resolve() == store.resolve()
    return header if is_of_store and (folder / REJECTED_NAME).exists() else None


def refuse_part(folder: Path) -> None:
    """Raise OutputError for a version of a set, which no run changes, and for a validation set, which follows its set.

    A version is named by its number, its folder, or `current`.
    """
    named, place = numbered(folder), folder.resolve()
    if named is not None and not folder.exists() and (named[0] / MANIFEST_NAME).exists():
        raise OutputError(f"{str(folder)!r} is a version, which no run changes; run hbpack restore {folder} first")
    if is_in_version(place) and (place.parent / MANIFEST_NAME).exists():
        raise OutputError(f"{str(folder)!r} is a version, which no run changes; name {str(place.parent)!r}")
    if place.name == VALIDATION and (_is_validation(place) or is_in_version(place)):
        whole = str(folder.parent if folder.name == VALIDATION else place.parent)
        raise OutputError(
            f"{str(folder)!r} is the validation set of {whole!r}, and follows what is planned there; name {whole!r}, "
            "or another folder"
        )


def _is_validation(place: Path) -> bool:
    """Whether a validation set is planned in a folder."""
    header = current_header(place)
    return header is not None and header.config.is_validation


def current_header(folder: Path) -> PlanHeader | None:
    """Read the header of the plan in a folder; return None if it is missing or damaged."""
    return intact_or_none(read_plan_header, folder / PLAN_NAME)


def current_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of the set that a folder is named for; return None if it is missing or damaged."""
    return intact_or_none(read_manifest, set_at(folder)) or intact_or_none(read_manifest, folder)  # Its copy.


def config_of_plan(folder: Path) -> PlannedConfig | None:
    """Read the options of the plan in a folder, or of the set made from it; return None if neither can be read."""
    if header := current_header(folder):
        return header.config
    manifest = current_manifest(folder)
    return None if manifest is None else validate(PlannedConfig, manifest.config.plan)


def refuse_other(folder: Path) -> None:
    """Raise OutputError if something else is in the place where the validation set is planned."""
    own = folder / VALIDATION
    if not is_remote(own) and own.is_symlink():
        raise OutputError(
            f"{str(own)!r} is a link, and the validation set must be in the folder of training; remove the link"
        )
    if (own / MANIFEST_NAME).exists() or (own / TOKENS).exists():
        raise OutputError(
            f"{str(own)!r} holds a set that was packed on its own, and --validation would hide it; move that "
            "folder, or name another --output"
        )


def remove_validation(folder: Path) -> None:
    """Remove the plan of a validation set from an output folder that sets nothing aside any more."""
    own = folder / VALIDATION
    is_reasons = (own / REJECTED_NAME).exists() and not is_remote(own) and _holds_only_reasons(own, os.listdir(own))
    if is_reasons or _is_validation(own):
        for name in (REJECTED_NAME, PLAN_NAME):
            (own / name).unlink(missing_ok=True)
        with suppress(OSError):
            own.rmdir()


def require_sound(folder: Path, training: PlanHeader) -> None:
    """Raise FormatError if the plan of the validation set is not as the plan of training asks."""
    if not training.config.sets_aside:
        return
    own = folder / VALIDATION
    try:
        header = read_plan_header(own / PLAN_NAME)
    except InputError:
        raise FormatError(f"{str(own)!r} holds no {PLAN_NAME}, and samples were set aside in it; {_PLAN}") from None
    if header.store_fingerprint != training.store_fingerprint or not header.config.follows(training.config):
        raise FormatError(f"{str(own)!r} is not planned as the training set is; {_PLAN}")


_PLAN = f"run {PLAN_AGAIN}"
