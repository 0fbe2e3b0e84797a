"""The validation set of an output folder: the samples that `--validation` sets aside, packed in `OUT/validation`.

The validation set is a packed set like any other, planned from the token store of `OUT` by options that follow from
those of training. So all commands take its own path. This module keeps the two sets in step: whatever plans, writes or
rebalances `OUT` does so with its validation set, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from packer_cli.commands.output_folder import current_manifest, holds_only_reasons, kind_of, locked_set
from packer_cli.engine.progress import say, warn
from packer_cli.errors import FormatError, InputError, OutputError
from packer_cli.files import remove_folder
from packer_cli.folders import entries_of
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME, SHARD_MARKERS, VALIDATION
from packer_cli.remote.path import is_remote
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.shards.repair import PLAN_AGAIN, what_writes_shards, write_command
from packer_cli.shards.stage import is_of_plan
from packer_cli.sizes import counted

_FOLDERS = ("shards", "ranks", SHARD_MARKERS)


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
        elif own.is_dir() and any(own.iterdir()) and _is_left_over(own):
            remove_folder(own)  # A run that was killed left its lock, or one without samples its reasons.
        return
    with locked_validation(folder):
        (own / MANIFEST_NAME).unlink(missing_ok=True)
        yield
        for name in _FOLDERS:
            remove_folder(own / name)
        for name in (REJECTED_NAME, PLAN_NAME):
            (own / name).unlink(missing_ok=True)
    others = entries_of(own)
    with suppress(OSError):
        own.rmdir()
    say(f"removed {own}" + (f", but not what hbpack did not write ({', '.join(others)})" if others else ""))


def _is_left_over(own: Path) -> bool:
    entries = entries_of(own)
    return not entries or holds_only_reasons(own, entries)


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
