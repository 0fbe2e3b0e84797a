"""The verify stage, which checks a packed set for damage."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packer_cli.commands.arguments import StrPath
from packer_cli.commands.engines import make_engine
from packer_cli.commands.output_folder import current_header, locked_output
from packer_cli.commands.write import run_write
from packer_cli.config import WriteConfig
from packer_cli.engine.local import Engine
from packer_cli.engine.progress import progress_bar
from packer_cli.errors import BusyError
from packer_cli.files import intact_or_none
from packer_cli.folder_lock import waiting
from packer_cli.format.constants import MANIFEST_NAME, VALIDATION
from packer_cli.format.versions import numbered, read_versions, set_at
from packer_cli.remote.path import as_path, is_remote
from packer_cli.shards.manifest import is_of_plan, read_manifest
from packer_cli.shards.repair import what_writes_shards, write_command
from packer_cli.sizes import counted
from packer_cli.verify.verifier import Verified, Verifier, open_verifier


def verify(path: StrPath, *, fast: bool = False, repair: bool = False, workers: int | None = None) -> Verified:
    """Check a packed set for damage, as `hbpack verify` does.

    Args:
        path: a packed set.
        fast: leave out the comparison of tokens with the token store.
        repair: rewrite damaged shards and rank manifests from the plan and the token store, and check again.
        workers: processes that check; by default, one for each CPU.

    Returns:
        All damage, with the commands that repair it; a set without any is `sound`.

    Raises:
        HbpackError: there is no packed set, or with `repair`, another run is writing to it.
    """
    folder = as_path(path)
    home = set_at(folder)
    with make_engine({"workers": workers}, preload=()) as engine:
        report = _verify(home, folder, engine, fast=fast)
        _go_by_restore(report, home, folder)
        if repair and report.sound and not is_remote(folder):
            with suppress(BusyError), waiting(0), locked_output(folder, has_plan=True):
                pass  # Removes what a killed repair left.
        by_write = all(damage.repair == write_command(folder) for damage in report.damaged)
        if not (repair and report.damaged and by_write):
            return report
        run_write(WriteConfig(), folder, engine)
        return replace(_verify(set_at(folder), folder, engine, fast=fast), repaired=report.damaged)


def _go_by_restore(report: Verified, home: Path, folder: Path) -> None:
    """Have damage of a version repaired after `restore` where the last plan, which `write` takes, is another."""
    named = None if folder.exists() else numbered(folder)
    root = named[0] if named else folder
    header, manifest = current_header(root), intact_or_none(read_manifest, home)
    if header is None or manifest is None or is_of_plan(manifest, header.fingerprint):
        return
    number = next((each.number for each in read_versions(root) if each.folder == home.name), None)
    if number is not None:
        first, to_root = f"hbpack restore {root}@{number}, then", (str(folder), str(root))
        report.damaged = [replace(each, repair=f"{first} {each.repair.replace(*to_root)}") for each in report.damaged]


def _verify(home: Path, folder: Path, engine: Engine, *, fast: bool, checks_store: bool = True) -> Verified:
    verifier = open_verifier(home, folder, engine, fast=fast, checks_store=checks_store)
    if not isinstance(verifier, Verifier):
        return verifier
    with progress_bar("Checking files") as progress:
        verifier.check_files(progress)
    with progress_bar("Comparing contents") as progress:
        verifier.check_contents(progress)
    manifest = intact_or_none(read_manifest, home)
    if home.parent == folder and set_at(folder) == home:
        copy = intact_or_none(read_manifest, folder)
        if copy is None or manifest is None or replace(copy, folder=None) != manifest:
            verifier.report.add({f"../{MANIFEST_NAME}": "it is not that of the version"}, write_command(folder))
    if manifest and manifest.planned.sets_aside:
        _verify_validation(home / VALIDATION, folder, manifest.num_gpus, verifier.report, engine, fast=fast)
    return verifier.report


def _verify_validation(own: Path, folder: Path, gpus: int, report: Verified, engine: Engine, *, fast: bool) -> None:
    """Add the damage of the version's validation set: `hbpack write` of the folder repairs that set, too."""
    manifest = intact_or_none(read_manifest, own)
    if manifest is None:
        what = "damaged" if (own / MANIFEST_NAME).exists() else "missing"
        report.add({f"{VALIDATION}/{MANIFEST_NAME}": f"it is {what}"}, what_writes_shards(folder))
        return
    if manifest.num_gpus != gpus:
        what = f"it is for {counted(manifest.num_gpus, 'GPU')}, and training for {gpus:,}"
        report.add({VALIDATION: what}, write_command(folder))
    found = _verify(own, folder, engine, fast=fast, checks_store=False)
    for damage in found.damaged:
        report.add({f"{VALIDATION}/{damage.file}": damage.what}, damage.repair)
    report.not_checked += [f"{VALIDATION}: {text}" for text in found.not_checked]
    report.checked["validation_samples"] = found.checked.get("samples", 0)
