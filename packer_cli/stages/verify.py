"""The verify stage: check a packed set for damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packer_cli.config import WriteConfig
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import progress_bar
from packer_cli.stages.write import run_write
from packer_cli.verify import Report, Verifier, open_verifier, write_command


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


def _verify(folder: Path, engine: Engine, *, fast: bool) -> Report:
    verifier = open_verifier(folder, engine, fast=fast)
    if not isinstance(verifier, Verifier):
        return verifier
    with progress_bar("Checking files") as progress:
        verifier.check_files(progress)
    with progress_bar("Comparing contents") as progress:
        verifier.check_contents(progress)
    return verifier.report
