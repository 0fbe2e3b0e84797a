"""The verify stage: check a packed set for damage."""

from __future__ import annotations

from pathlib import Path

from packer_cli.engine.base import Engine
from packer_cli.engine.progress import progress_bar
from packer_cli.verify import Report, Verifier, open_verifier


def run_verify(folder: Path, engine: Engine, *, fast: bool) -> Report:
    """Report everything that is wrong with the set in a folder.

    Raises:
        InputError: there is no packed set.
    """
    verifier = open_verifier(folder, engine, fast=fast)
    if not isinstance(verifier, Verifier):
        return verifier
    with progress_bar("Checking files") as progress:
        verifier.check_files(progress)
    with progress_bar("Comparing contents") as progress:
        verifier.check_contents(progress)
    return verifier.report
