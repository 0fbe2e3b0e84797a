"""The verify stage: check a packed set for damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packer_cli.config import PlannedConfig, WriteConfig, validate
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import progress_bar
from packer_cli.errors import FormatError, InputError
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import read_plan_header
from packer_cli.sizes import counted
from packer_cli.stages.output import current_manifest
from packer_cli.stages.validation import NAME, validation_header
from packer_cli.stages.write import run_write
from packer_cli.verify import Report, Verifier, open_verifier, write_command
from packer_cli.verify.report import without_remedy


def run_verify(folder: Path, engine: Engine, *, fast: bool, repairs: bool = False) -> Report:
    """Report everything that is wrong with the set in a folder.

    Args:
        repairs: where `hbpack write` repairs all of it, do so and check the set again.

    Raises:
        InputError: there is no packed set.
        BusyError: another run is writing to the folder, so nothing can be repaired.
    """
    report = _verify(folder, engine, fast=fast)
    if not (repairs and report.damaged and all(damage.repair == write_command(folder) for damage in report.damaged)):
        return report
    run_write(WriteConfig(), folder, engine)
    return replace(_verify(folder, engine, fast=fast), repaired=report.damaged)


def _verify(folder: Path, engine: Engine, *, fast: bool, checks_store: bool = True) -> Report:
    verifier = open_verifier(folder, engine, fast=fast, checks_store=checks_store)
    if not isinstance(verifier, Verifier):
        return verifier
    with progress_bar("Checking files") as progress:
        verifier.check_files(progress)
    with progress_bar("Comparing contents") as progress:
        verifier.check_contents(progress)
    _verify_validation(folder, verifier.report, engine, fast=fast)
    return verifier.report


def _verify_validation(folder: Path, report: Report, engine: Engine, *, fast: bool) -> None:
    """Add what is wrong with the validation set, if there is one: `hbpack write` of the folder repairs it, too."""
    manifest = current_manifest(folder)
    if manifest is None or not validate(PlannedConfig, manifest.config.plan).sets_aside:
        return
    try:
        validation_header(folder, read_plan_header(folder / PLAN_NAME))
        num_gpus = read_manifest(folder / NAME).num_gpus
        if num_gpus != manifest.num_gpus:
            what = f"it is for {counted(num_gpus, 'GPU')}, and training for {manifest.num_gpus:,}"
            report.add({f"{NAME}/{MANIFEST_NAME}": what}, write_command(folder))
        found = _verify(folder / NAME, engine, fast=fast, checks_store=False)
    except (InputError, FormatError) as error:
        report.add({NAME: without_remedy(error)}, "the same hbpack pack again, or hbpack plan and hbpack write")
        return
    for damage in found.damaged:
        own, whole = write_command(folder / NAME), write_command(folder)
        report.add({f"{NAME}/{damage.file}": damage.what}, damage.repair.replace(own, whole))
    report.not_checked += [f"{NAME}: {text}" for text in found.not_checked]
    report.checked["validation_samples"] = found.checked.get("samples", 0)
