"""`export`: a packed set in another trainer's format."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from packer_cli.commands.produce import Output, produce
from packer_cli.engine.array import ArrayIds, ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Stopwatch, progress_bar, say
from packer_cli.export.listing import NAME, WORK
from packer_cli.export.options import ExportOptions, describe_export, is_same_export
from packer_cli.export.push import PushOptions, check_push, push_export, push_set
from packer_cli.export.stage import ExportResult, complete_export, export_set, export_share
from packer_cli.folders import TaskLock, hold_folder
from packer_cli.format.constants import VALIDATION
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import counted, format_bytes


def run_export(
    options: ExportOptions,
    folder: Path,
    output: Path,
    engine: Engine,
    ids: ArrayIds | None = None,
    push: PushOptions | None = None,
) -> str | None:
    """Write the packed set in `folder` to `output`. A run that was killed continues where it stopped.

    Args:
        ids: write the share of a task of a job array. The last task to end completes the export.
        push: push the export to the Hugging Face Hub, too; not as a task of an array.

    Returns:
        The name of the data set on the Hub, `USER/NAME`; None if nothing was pushed.

    Raises:
        OutputError: `output` holds other files.
        InputError, FormatError: there is no packed set, or it is damaged.
        RemoteError: the Hub does not answer, or refuses.
    """
    if push:
        check_push(push, output)
    _write_export(options, folder, output, engine, ids)
    return push_export(push, output, read_manifest(folder)) if push else None


def run_push(push: PushOptions, folder: Path, engine: Engine) -> str:
    """Push the packed set in `folder` to the Hugging Face Hub. Returns its name there.

    Raises:
        InputError, FormatError: there is no packed set, or it is damaged.
        ConfigError: its shards leave their tokens in the token store.
        OutputError, RemoteError: the data set on the Hub holds something else, or the Hub refuses.
    """
    check_push(push, folder)
    with progress_bar("Checking", unit="bytes") as progress:
        return push_set(push, folder, engine, progress)


def _write_export(options: ExportOptions, folder: Path, output: Path, engine: Engine, ids: ArrayIds | None) -> None:
    manifest = read_manifest(folder)
    if manifest.has_windows:
        say(
            "an export has no windows: training on it sees whole samples from the first step on, without "
            f"--curriculum {manifest.config.plan['curriculum']}"
        )
    if manifest.sets_aside:
        say(f"{folder / VALIDATION} is a set of its own; export it with another hbpack export")
    if options.order == "use":
        epoch = manifest.first_epoch if options.epoch is None else options.epoch
        entry, is_written = manifest.generation.find_epoch(epoch, "--epoch")
        if is_written and entry.first_step:
            say(
                f"epoch {epoch} is exported from step {entry.first_step} on, at which the set was rebalanced; "
                "--order packs exports all packs"
            )
    produce(_Export(options, folder, output), engine, ids)


class _Export(Output[ExportResult | None]):
    command = "export"

    def __init__(self, options: ExportOptions, source: Path, folder: Path) -> None:
        self._options, self._source, self.folder = options, source, folder
        self.work, self.listing = folder / WORK, folder / NAME
        self._manifest, self._header = describe_export(options, source)

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        return hold_folder(self.folder, lambda entries: is_same_export(self.folder, entries, self._header), lock)

    def make(self, engine: Engine) -> ExportResult | None:
        watch = Stopwatch()
        with progress_bar("Exporting", unit="tokens") as progress:
            done = export_set(self._header, self._manifest, self._source, self.folder, engine, progress)
        if done is None:
            say("the export is up to date")
        else:
            say(
                f"exported {counted(done.num_rows, 'pack')}, {counted(done.num_samples, 'sample')}, "
                f"{counted(done.num_tokens, 'token')} to {self._options.format}: {_files(done)} ({watch})"
            )
        return done

    def make_share(self, engine: Engine, share: ArrayShare) -> bool:
        watch, task = Stopwatch(), share.task
        with progress_bar("Exporting", unit="tokens") as progress:
            num_parts = export_share(self._header, self._manifest, self._source, self.folder, engine, progress, share)
        if num_parts is None:
            say(f"the export is complete, and the parts of task {task} are intact")
        else:
            what = f"exported {counted(num_parts, 'part')} ({watch})"
            say(what if num_parts else f"the set has no part for task {task}")
        return num_parts is None

    def complete(self) -> ExportResult | None:
        return complete_export(self.folder)

    def say_complete(self, result: ExportResult | None) -> None:
        if result is None:  # A run that was killed had finished it.
            return
        say(
            f"all tasks are done, and the export is complete: {counted(result.num_rows, 'pack')}, "
            f"{counted(result.num_tokens, 'token')}, {_files(result)}"
        )


def _files(done: ExportResult) -> str:
    return f"{counted(done.num_files, 'file')}, {format_bytes(done.num_bytes)}"
