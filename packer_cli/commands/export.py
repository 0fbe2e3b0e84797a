"""`export`: a packed set in another trainer's format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer_cli.config.models import ExportConfig
from packer_cli.engine.array import ArrayIds
from packer_cli.engine.local import Engine
from packer_cli.engine.output import produce
from packer_cli.engine.progress import progress_bar, say, warn
from packer_cli.export.formats import load_format
from packer_cli.export.listing import ExportListing, count_files, read_listing
from packer_cli.export.push import PushOptions, check_push, push_export, push_set
from packer_cli.export.stage import Exporter
from packer_cli.format.constants import VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import Hidden
from packer_cli.format.versions import set_at
from packer_cli.remote.path import as_path
from packer_cli.shards.manifest import read_manifest


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of `hbpack export`."""

    output: str | None = None
    """Folder of the export; None for a packed set that was pushed to the Hub as it is."""
    format: str | None = None
    """Format of the export; None for a packed set that was pushed to the Hub as it is."""
    pushed_to: str | None = None
    """The data set on the Hub, `USER/NAME`."""
    is_complete: bool
    """False after a task of a job array whose other tasks are not done; only a complete export has numbers."""
    num_rows: int | None = None
    """Number of packs."""
    num_samples: int | None = None
    num_tokens: int | None = None
    num_files: int | None = None
    num_bytes: int | None = None
    listing: Hidden[ExportListing | None] = None
    """The listing of the export's files and numbers."""


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
        push: options to push the export to the Hugging Face Hub; not for a task of an array.
        ids: write the share of a task of a job array. The last task to end completes the export.

    Raises:
        OutputError: `output`, or the data set on the Hub, holds something else.
        InputError, FormatError: there is no packed set, or it is damaged.
        ConfigError: the set is to be pushed as it is, and leaves its tokens in the token store.
        RemoteError: the Hub does not answer, or refuses.
    """
    named, target = as_path(source), as_path(output or source)
    folder = set_at(named)
    if push:
        check_push(push, target)
    if options is None:
        assert push is not None
        with progress_bar("Checking", unit="bytes") as progress:
            return Exported(pushed_to=push_set(push, folder, engine, progress), is_complete=True)
    manifest = read_manifest(folder)
    _say_what_is_left_out(manifest, options, named)
    produce(Exporter(options, named, target), engine, ids)
    listing = read_listing(target)
    pushed_to = push_export(push, target, manifest, listing) if push and listing else None
    done = Exported(output=output, format=options.format, pushed_to=pushed_to, is_complete=listing is not None)
    if listing is None:
        return done
    _warn_of_shared_rows(options.format, manifest, listing)
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


def _say_what_is_left_out(manifest: Manifest, options: ExportConfig, folder: Path) -> None:
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
