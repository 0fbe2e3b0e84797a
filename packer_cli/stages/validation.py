"""The validation set of an output folder: the samples that `--validation` sets aside, packed in `OUT/validation`.

It is a packed set like any other, planned from the token store of `OUT` by options that follow from those of training.
So all commands take it by its own path. What is here keeps the two in step: whatever plans, writes or rebalances `OUT`
does so with its validation set, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packer_cli.engine.progress import naming
from packer_cli.errors import FormatError, InputError, OutputError
from packer_cli.files import is_temporary, remove_folder
from packer_cli.folders import LOCK_NAME
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.stages.output import TOKENS, current_manifest, locked_output

NAME = "validation"
"""The set's folder in an output folder."""


@contextmanager
def locked_validation(folder: Path, *, has_plan: bool = False) -> Iterator[Path]:
    """Lock the folder of the validation set of an output folder while the block runs, and name it in messages.

    Args:
        has_plan: see `locked_output`.

    Raises:
        OutputError: something else is in its place.
        BusyError: another run is writing to it.
    """
    refuse_other(folder)
    own = folder / NAME
    with locked_output(own, has_plan=has_plan), naming(NAME):
        yield own


def refuse_other(folder: Path) -> None:
    """Raise OutputError if something else is in the place of the validation set."""
    own = folder / NAME
    if (own / TOKENS).exists() or _is_other(own):
        raise OutputError(
            f"{str(own)!r} holds a set that was packed on its own, and --validation would replace it; move it, or "
            "name another --output"
        )


def remove_validation(folder: Path) -> None:
    """Remove the validation set that an earlier plan set aside: its samples are in the training set now.

    The manifest goes first, so that nobody reads what is left if the run is killed; the plan, which marks the folder
    as ours, goes last. A folder of nothing but an old lock goes, too.
    """
    own = folder / NAME
    if not own.is_dir():
        return
    others = [path for path in own.iterdir() if not (path.name.startswith(LOCK_NAME) or is_temporary(path.name))]
    if others and (_config(own) is None or _is_other(own)):
        return
    with locked_output(own):
        (own / MANIFEST_NAME).unlink(missing_ok=True)
        for path in others:
            if path.is_dir():
                remove_folder(path)
            elif path.name != PLAN_NAME:
                path.unlink(missing_ok=True)
        remove_folder(own)


def validation_header(folder: Path, training: PlanHeader) -> PlanHeader | None:
    """The header of the validation set's plan; None if training sets nothing aside.

    Raises:
        FormatError: there is no such plan, or it is damaged, or sets other samples aside.
    """
    if not training.config.sets_aside:
        return None
    own, again = folder / NAME, "run the same hbpack pack or hbpack plan again"
    try:
        header = read_plan_header(own / PLAN_NAME)
    except InputError:
        raise FormatError(f"{str(own)!r}, in which samples were set aside, holds no plan; {again}") from None
    is_same = header.config.validation == training.config.validation and header.config.is_validation
    if not is_same or header.store_fingerprint != training.store_fingerprint:
        raise FormatError(f"{str(own)!r} holds other samples than those that were set aside; {again}")
    return header


def _config(own: Path) -> dict[str, object] | None:
    """The options of the plan, or of the manifest, in a folder; None if it has neither."""
    try:
        return {"is_validation": read_plan_header(own / PLAN_NAME).config.is_validation}
    except (InputError, FormatError):
        manifest = current_manifest(own)
        return None if manifest is None else manifest.config.plan


def _is_other(own: Path) -> bool:
    config = _config(own)
    return config is not None and not config.get("is_validation")
