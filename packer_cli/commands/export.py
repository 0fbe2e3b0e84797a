"""`export`: a packed set in another trainer's format."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer_cli.commands.job_array import Output, produce
from packer_cli.config.models import ExportConfig
from packer_cli.engine.array import ArrayIds, ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Stopwatch, progress_bar, say, warn
from packer_cli.export.formats import load_format
from packer_cli.export.listing import NAME, WORK, ExportListing, count_files, read_listing
from packer_cli.export.options import describe_export, is_same_export
from packer_cli.export.push import PushOptions, check_push, push_export, push_set
from packer_cli.export.stage import complete_export, export_set, export_share
from packer_cli.folders import TaskLock, hold_folder
from packer_cli.format.constants import VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import Hidden
from packer_cli.remote.names import as_path
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import counted, format_bytes


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What `hbpack export` left."""

    output: str | None = None
    """None for a packed set that was pushed to the Hub as it is."""
    format: str | None = None
    """None likewise."""
    pushed_to: str | None = None
    """The data set on the Hub, `USER/NAME`."""
    is_complete: bool
    """False after a task of a job array whose others are not done; the numbers are of a complete export."""
    num_rows: int | None = None
    """Packs."""
    num_samples: int | None = None
    num_tokens: int | None = None
    num_files: int | None = None
    num_bytes: int | None = None
    listing: Hidden[ExportListing | None] = None
    """What the export says of itself."""


def run_export(
    source: str,
    options: ExportConfig | None,
    output: str | None,
    push: PushOptions | None,
    engine: Engine,
    ids: ArrayIds | None = None,
) -> Exported:
    """Write the packed set in `source` to `output`, or push it. A run that was killed continues where it stopped.

    Args:
        options: None for the packed set as it is, which is then pushed.
        push: push it to the Hugging Face Hub; not as a task of an array.
        ids: write the share of a task of a job array. The last task to end completes the export.

    Raises:
        OutputError: `output`, or the data set on the Hub, holds something else.
        InputError, FormatError: there is no packed set, or it is damaged.
        ConfigError: the set is to be pushed as it is, and leaves its tokens in the token store.
        RemoteError: the Hub does not answer, or refuses.
    """
    folder, target = as_path(source), as_path(output or source)
    if push:
        check_push(push, target)
    if options is None:
        assert push is not None
        with progress_bar("Checking", unit="bytes") as progress:
            return Exported(pushed_to=push_set(push, folder, engine, progress), is_complete=True)
    _write_export(options, folder, target, engine, ids)
    listing = read_listing(target)
    pushed_to = push_export(push, target, read_manifest(folder), listing) if push and listing else None
    done = Exported(output=output, format=options.format, pushed_to=pushed_to, is_complete=listing is not None)
    if listing is None:
        return done
    _warn_of_shared_rows(options.format, read_manifest(folder), listing)
    num_files, num_bytes = count_files(listing)
    sizes: dict[str, Any] = {name: value for name, value in listing.items() if name in _SIZES}
    return replace(done, **sizes, num_files=num_files, num_bytes=num_bytes, listing=listing)


_SIZES = ("num_rows", "num_samples", "num_tokens")


def _warn_of_shared_rows(format: str, manifest: Manifest, listing: ExportListing) -> None:
    """Warn of rows that were planned for several GPUs, if the trainer of the format runs each on one."""
    groups = [group for group in manifest.groups if group.name in listing["groups"] and group.num_packs]
    longest = max(groups, key=lambda group: group.sp_size * group.cp_size, default=None)
    if longest is not None and longest.sp_size * longest.cp_size > 1 and not load_format(format).shares_rows:
        warn(
            f"rows of {longest.capacity:,} tokens were planned for {longest.sp_size * longest.cp_size} GPUs each, and "
            f"{format} runs every row on one GPU, whose memory must hold it: choose groups of one GPU with --groups, "
            "or train with the loader"
        )


def _write_export(options: ExportConfig, folder: Path, output: Path, engine: Engine, ids: ArrayIds | None) -> None:
    manifest = read_manifest(folder)
    if manifest.has_windows:
        say(
            "an export has no windows: training on it sees whole samples from the first step on, without "
            f"--curriculum {manifest.planned.curriculum}"
        )
    if manifest.planned.sets_aside:
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


class _Export(Output[ExportListing | None]):
    command = "export"

    def __init__(self, options: ExportConfig, source: Path, folder: Path) -> None:
        self._options, self.folder = options, folder
        self.work, self.listing = folder / WORK, folder / NAME
        self._request = describe_export(options, source, folder)

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        return hold_folder(
            self.folder, lambda entries: is_same_export(self.folder, entries, self._request.header), lock
        )

    def make(self, engine: Engine) -> ExportListing | None:
        watch = Stopwatch()
        with progress_bar("Exporting", unit="tokens") as progress:
            done = export_set(self._request, engine, progress)
        if done is None:
            say("the export is up to date")
        else:
            say(
                f"exported {counted(done['num_rows'], 'pack')}, {counted(done['num_samples'], 'sample')}, "
                f"{counted(done['num_tokens'], 'token')} to {self._options.format}: {_files(done)} ({watch})"
            )
        return done

    def make_share(self, engine: Engine, share: ArrayShare) -> bool:
        watch, task = Stopwatch(), share.task
        with progress_bar("Exporting", unit="tokens") as progress:
            num_parts = export_share(self._request, engine, progress, share)
        if num_parts is None:
            say(f"the export is complete, and the parts of task {task} are intact")
        else:
            what = f"exported {counted(num_parts, 'part')} ({watch})"
            say(what if num_parts else f"the set has no part for task {task}")
        return num_parts is None

    def complete(self) -> ExportListing | None:
        return complete_export(self.folder)

    def say_complete(self, result: ExportListing | None) -> None:
        if result is None:  # A run that was killed had finished it.
            return
        say(
            f"all tasks are done, and the export is complete: {counted(result['num_rows'], 'pack')}, "
            f"{counted(result['num_tokens'], 'token')}, {_files(result)}"
        )


def _files(listing: ExportListing) -> str:
    num_files, num_bytes = count_files(listing)
    return f"{counted(num_files, 'file')}, {format_bytes(num_bytes)}"
