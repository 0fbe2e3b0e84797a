"""`export`: a packed set in another trainer's format."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import StrPath, refuse_given, takes
from packer_cli.commands.engines import make_engine
from packer_cli.commands.output_folder import current_header
from packer_cli.config import validate
from packer_cli.config.models import JobConfig
from packer_cli.config.set_options import ExportConfig
from packer_cli.engine.array import ArrayIds
from packer_cli.engine.local import Engine
from packer_cli.engine.output import produce
from packer_cli.engine.progress import progress_bar, say, warn
from packer_cli.engine.scheduler import array_ids
from packer_cli.errors import ConfigError
from packer_cli.export.formats import load_format
from packer_cli.export.listing import ExportListing, count_files, read_listing
from packer_cli.export.push import PushOptions, check_push, push_export, push_set
from packer_cli.export.stage import Exporter
from packer_cli.files import intact_or_none
from packer_cli.format.constants import STORE_COPY, VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import Hidden
from packer_cli.format.versions import set_at
from packer_cli.remote.path import as_path
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.own_store import store_of
from packer_cli.tokens.derived import HUB, note_derived
from packer_cli.tokens.index import read_index

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfExport


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
    """Number of samples."""
    num_tokens: int | None = None
    """Number of tokens."""
    num_files: int | None = None
    """Number of files."""
    num_bytes: int | None = None
    """Bytes of the files."""
    listing: Hidden[ExportListing | None] = None
    """The listing of the export's files and numbers."""


@takes(ExportConfig, JobConfig)
def export(
    path: StrPath,
    *,
    to: str | None = None,
    output: StrPath | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    license: str | None = None,
    **options: Unpack[CallOfExport],
) -> Exported:
    """Write a packed set in another trainer's format, or push it to the Hugging Face Hub, as `hbpack export` does.

    Call it again after a crash: it continues where it stopped.

    Args:
        path: a packed set.
        to: format to write, such as `"trl"`; None for the packed set as it is, which is then pushed.
        output: folder to write: new, empty, or of the same export, interrupted.
        push_to_hub: data set on the Hugging Face Hub that gets the export, or the packed set without `to`.
        private: make that data set private; a public one is refused.
        license: licence that its card names, such as `"apache-2.0"`.
        options: see "Options of an export", and `workers`, `engine` and `shard`.

    Raises:
        HbpackError: an option is wrong, the output holds something else, there is no packed set, it is damaged, or
            the Hub does not answer or refuses.
    """
    if to is None and push_to_hub is None:
        raise ConfigError("--to is required; to push the packed set itself, give --push-to-hub")
    if (to is None) != (output is None):
        raise ConfigError("--to needs --output" if to else "--output needs --to")
    if to is None:
        of_export = ("groups", "epoch", "shard_size")
        refuse_given(options, of_export, lambda name: f"{name} applies to an export: give --to, too")
    if push_to_hub is None and (private or license is not None):
        raise ConfigError("--private and --license apply to a data set on the Hub; give --push-to-hub, too")
    ids = array_ids(options.get("shard"))
    if push_to_hub is not None and ids is not None:
        raise ConfigError(
            "--push-to-hub does not run in a job array; when all tasks are done, run the same command outside it"
        )
    push = None if push_to_hub is None else PushOptions(name=push_to_hub, private=private, license=license)
    config = validate(ExportConfig, {**options, "format": to}) if to else None
    target = path if output is None else output
    with make_engine(options, preload=()) as engine:
        done = _export(as_path(path), config, as_path(target), push, engine, ids)
    return done if output is None else replace(done, output=os.fspath(output))


def _export(
    named: Path,
    options: ExportConfig | None,
    target: Path,
    push: PushOptions | None,
    engine: Engine,
    ids: ArrayIds | None,
) -> Exported:
    """Write a packed set, or push it as it is: `options` is None."""
    folder = set_at(named)
    if push:
        check_push(push, target)
    if options is None:
        assert push is not None
        with progress_bar("Checking", unit="bytes") as progress:
            name = push_set(push, folder, engine, progress)
        _note(folder, "push", f"{HUB}{name}")
        return Exported(pushed_to=name, is_complete=True)
    manifest = read_manifest(folder)
    _say_what_is_left_out(manifest, options, named)
    _note(folder, options.format, target)
    produce(Exporter(options, named, target), engine, ids)
    listing = read_listing(target)
    pushed_to = push_export(push, target, manifest, listing) if push and listing else None
    if pushed_to:
        _note(folder, "push", f"{HUB}{pushed_to}")
    done = Exported(format=options.format, pushed_to=pushed_to, is_complete=listing is not None)
    if listing is None:
        return done
    _warn_of_shared_rows(options.format, manifest, listing)
    num_files, num_bytes = count_files(listing)
    sizes: dict[str, Any] = {name: value for name, value in listing.items() if name in _SIZES}
    return replace(done, **sizes, num_files=num_files, num_bytes=num_bytes, listing=listing)


def _note(folder: Path, kind: str, target: Path | str) -> None:
    header, index = current_header(folder), intact_or_none(read_index, folder, STORE_COPY)
    if header and index:
        note_derived(store_of(folder, header), index, kind, target)


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
