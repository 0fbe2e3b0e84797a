"""The output folder of the stages: whether hbpack wrote it, its contents, and the validation set in it.

The validation set, `OUT/validation`, holds the samples that `--validation` sets aside. It is a packed set like any
other, planned from the token store of `OUT` by options that follow from those of training. So all commands take its
own path. This module keeps the two sets in step: whatever plans, writes or rebalances `OUT` does so with its
validation set, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from packer_cli.config import PlannedConfig, validate
from packer_cli.engine.array import ArrayRecords
from packer_cli.engine.progress import say, warn
from packer_cli.errors import FormatError, InputError, OutputError
from packer_cli.files import intact_or_none, remove_folder
from packer_cli.folder_lock import TaskLock, entries_of, hold_folder, require_ours
from packer_cli.format.checksums import inside
from packer_cli.format.constants import (
    MANIFEST_NAME,
    PLAN_NAME,
    REFERENCE_FOLDER,
    REJECTED_NAME,
    SHARD_MARKERS,
    VALIDATION,
)
from packer_cli.format.manifest import Manifest
from packer_cli.remote.path import is_remote, path_from
from packer_cli.shards.manifest import is_of_plan, read_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.shards.repair import PLAN_AGAIN, what_writes_shards, write_command
from packer_cli.sizes import counted
from packer_cli.tokens.index import INDEX_NAME, TOKENS, WORK, StoreIndex, read_index
from packer_cli.tokens.store import TokenStore, open_store

APPEND_MARKER = ".append.json"
"""File in the output folder from the beginning of an append to its end, from which a run goes on after a kill."""


def locked_output(
    folder: Path, *, has_plan: bool = False, task: TaskLock | None = None
) -> AbstractContextManager[None]:
    """Check the output folder of a stage, and lock it with `locked_set` while the block runs.

    Raises:
        OutputError: the folder is the validation set of another folder, or see `locked_set`.
        BusyError: another run is writing to it.
    """
    refuse_validation(folder)
    return locked_set(folder, has_plan=has_plan, task=task)


def require_usable(folder: Path) -> None:
    """Raise OutputError where `locked_output` would, without making the folder."""
    refuse_validation(folder)
    require_ours(folder, partial(_is_own, folder))


@contextmanager
def locked_set(folder: Path, *, has_plan: bool = False, task: TaskLock | None = None) -> Iterator[None]:
    """Check the folder of a set, and lock it against other runs while the block runs.

    Args:
        has_plan: whether the folder must hold a plan, rather than be new or an earlier run's. The block itself reports
        a missing plan or a read-only folder.
        task: the lock of a task, which shares the folder with the other tasks of an array.

    Raises:
        OutputError: the folder holds other files, or cannot be written to.
        BusyError: another run is writing to it.
    """
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
    for pattern in ("shards", "shards/*", "ranks", "ranks/*", "ranks/*/epoch-*"):
        for path in folder.glob(pattern):
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
    """Whether there is nothing, or planning found no samples and left its reasons, maybe beside an earlier plan's
    shards."""
    if not entries:
        return True
    path = folder / REJECTED_NAME
    if not path.is_file() or not {*entries} <= {REJECTED_NAME, SHARD_MARKERS, "shards", "ranks", REFERENCE_FOLDER}:
        return False
    begin = b'{"file": '
    with path.open("rb") as file:
        return file.read(len(begin)) in (b"", begin)


def store_of(folder: Path, header: PlanHeader) -> Path:
    """Return the token store of the plan in a folder."""
    return path_from(folder, header.store)


def own_index(folder: Path, header: PlanHeader) -> StoreIndex:
    """Read the index of the token store of the plan in a folder.

    Raises:
        InputError, FormatError: the store is gone, damaged, or another one by now.
    """
    store = store_of(folder, header)
    index = read_index(store)
    if index.fingerprint != header.store_fingerprint:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")
    return index


def open_own_store(folder: Path, header: PlanHeader) -> TokenStore:
    """Open the token store of the plan in a folder; the errors are those of `own_index`."""
    return open_store(store_of(folder, header), own_index(folder, header))


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


def kind_of(own: Path) -> Literal["none", "ours", "other"]:
    """Find the kind of set in a validation set's place: none that can be read, a validation set, or one of its own."""
    config = config_of_plan(own)
    if (own / TOKENS).exists() or (config is not None and not config.is_validation):
        return "other"
    return "none" if config is None else "ours"


def refuse_validation(folder: Path) -> None:
    """Raise OutputError for a folder with the validation set of the folder around it, whose plan makes both."""
    place = folder.resolve()
    if place.name == VALIDATION and kind_of(place) == "ours":
        whole = str(folder.parent if folder.name == VALIDATION else place.parent)
        raise OutputError(
            f"{str(folder)!r} is the validation set of {whole!r}, and follows what is planned there; name {whole!r}, "
            "or another folder"
        )


def current_header(folder: Path) -> PlanHeader | None:
    """Read the header of the plan in a folder; return None if it is missing or damaged."""
    return intact_or_none(read_plan_header, folder / PLAN_NAME)


def current_manifest(folder: Path) -> Manifest | None:
    """Read the manifest in a folder; return None if it is missing or damaged."""
    return intact_or_none(read_manifest, folder)


def config_of_plan(folder: Path) -> PlannedConfig | None:
    """Read the options of the plan in a folder, or of the set made from it; return None if neither can be read."""
    if header := current_header(folder):
        return header.config
    manifest = current_manifest(folder)
    return None if manifest is None else validate(PlannedConfig, manifest.config.plan)


@contextmanager
def locked_validation(folder: Path, *, has_plan: bool = False) -> Iterator[Path]:
    """Lock the folder of the validation set of an output folder while the block runs.

    Args:
        has_plan: see `locked_set`.

    Raises:
        OutputError: something else is in the validation set's place, or its folder cannot be written to.
        BusyError: another run is writing to it.
    """
    refuse_other(folder)
    own = folder / VALIDATION
    with locked_set(own, has_plan=has_plan):
        yield own


def refuse_other(folder: Path) -> None:
    """Raise OutputError if something else is in the place of the validation set."""
    own = folder / VALIDATION
    if not is_remote(own) and own.is_symlink():
        raise OutputError(
            f"{str(own)!r} is a link, and the validation set must be in the folder of training; remove the link"
        )
    if kind_of(own) == "other":
        raise OutputError(
            f"{str(own)!r} holds a set that was packed on its own, and --validation would replace it; move that "
            "folder, or name another --output"
        )


@contextmanager
def removing_validation(folder: Path) -> Iterator[None]:
    """Take the validation set away from an output folder that sets nothing aside: its samples are in training again.

    The set's manifest goes before the block, which writes the plan of training, and the rest afterwards. So nobody
    reads the set beside a plan that trains on its samples, whenever the run is killed. Its plan goes last, since the
    plan marks the folder as hbpack's. Other files stay.
    """
    own = folder / VALIDATION
    if kind_of(own) != "ours":
        yield
        if (own / PLAN_NAME).exists() and kind_of(own) == "none":
            warn(f"{str(own / PLAN_NAME)!r} cannot be read, so {str(own)!r} stays; remove it if you do not need it")
        elif own.is_dir() and any(own.iterdir()) and _holds_only_reasons(own, entries_of(own)):
            remove_folder(own)  # A run that was killed left its lock, or one without samples its reasons.
        return
    with locked_validation(folder):
        (own / MANIFEST_NAME).unlink(missing_ok=True)
        yield
        for name in ("shards", "ranks", SHARD_MARKERS):
            remove_folder(own / name)
        for name in (REJECTED_NAME, PLAN_NAME):
            (own / name).unlink(missing_ok=True)
    others = entries_of(own)
    with suppress(OSError):
        own.rmdir()
    say(f"removed {own}" + (f", but not what hbpack did not write ({', '.join(others)})" if others else ""))


class Fault(NamedTuple):
    """Fault by which a validation set cannot be read beside its training set."""

    what: str
    """The fault, as a sentence on `it`, the validation set."""
    remedy: str
    """The command that mends the fault."""


def find_fault(folder: Path, training: PlanHeader, num_gpus: int | None = None) -> Fault | None:
    """Find why the validation set does not fit a plan, by plans and manifests alone; None if it does, or none is due.

    Args:
        num_gpus: the GPUs that the set of training is for; None if it is not written.
    """
    own, config = folder / VALIDATION, training.config
    kind = kind_of(own)
    if not config.sets_aside:
        what = "it holds samples that are in the training set, too"
        return Fault(what, write_command(folder)) if kind == "ours" else None
    if kind == "other":
        what = "it holds a set that was packed on its own, and none of the samples that were set aside"
        return Fault(what, f"mv {own} ELSEWHERE, then {PLAN_AGAIN}")
    try:
        header = read_plan_header(own / PLAN_NAME)
    except InputError:
        return Fault(f"it holds no {PLAN_NAME}, and samples were set aside in it", PLAN_AGAIN)
    except FormatError:
        return Fault(f"its {PLAN_NAME} is damaged or of another release", PLAN_AGAIN)
    if header.store_fingerprint != training.store_fingerprint or not header.config.follows(config):
        return Fault("it is not planned as the training set is", PLAN_AGAIN)
    manifest = current_manifest(own)
    if manifest is None or not is_of_plan(manifest, header.fingerprint):
        return Fault("its shards are not written", what_writes_shards(folder))
    if num_gpus not in (None, manifest.num_gpus):
        what = f"it is for {counted(manifest.num_gpus, 'GPU')}, and training for {num_gpus:,}"
        return Fault(what, write_command(folder))
    return None


def require_sound(folder: Path, training: PlanHeader, *, mends: str = "") -> None:
    """Raise FormatError if the validation set does not fit a plan.

    Args:
        mends: the command that is running; a fault that this command mends raises nothing.
    """
    fault = find_fault(folder, training)
    if fault is not None and fault.remedy != mends:
        raise FormatError(f"{str(folder / VALIDATION)!r}: {fault.what}; run {fault.remedy}")
