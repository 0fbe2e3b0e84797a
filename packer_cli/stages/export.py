"""The export stage: a packed set in another trainer's format."""

from __future__ import annotations

from pathlib import Path

from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Stopwatch, progress_bar, say
from packer_cli.export.stage import ExportOptions, export_set
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import counted, format_bytes


def run_export(options: ExportOptions, folder: Path, output: Path, engine: Engine) -> None:
    """Write the packed set in `folder` to `output`. A run that was killed continues where it stopped.

    Raises:
        OutputError: `output` holds other files.
        InputError, FormatError: there is no packed set, or it is damaged.
    """
    watch = Stopwatch()
    manifest = read_manifest(folder)
    if manifest.has_windows:
        say(
            "an export has no windows: training on it sees whole samples from the first step on, without "
            f"--curriculum {manifest.config.plan['curriculum']}"
        )
    with progress_bar("Exporting", unit="tokens") as progress:
        done = export_set(options, folder, output, engine, progress)
    if done is None:
        say("the export is up to date")
        return
    say(
        f"exported {counted(done.num_rows, 'pack')}, {counted(done.num_samples, 'sample')}, "
        f"{counted(done.num_tokens, 'token')} to {options.format}: {counted(done.num_files, 'file')}, "
        f"{format_bytes(done.num_bytes)} ({watch})"
    )
