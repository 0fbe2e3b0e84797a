"""The end of the other commands that write: a line or JSON, and what to do next."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from packer_cli.cli.console import print_json, say_next, shown_command, shown_options
from packer_cli.commands.output import TOKENS, current_manifest
from packer_cli.commands.write import describe_set
from packer_cli.config import GpuConfig
from packer_cli.errors import InputError
from packer_cli.export.formats import FORMATS, load_format
from packer_cli.export.listing import ExportListing, read_listing
from packer_cli.format.constants import PLAN_NAME, VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import OverallMetrics
from packer_cli.remote.names import as_path
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.shards.stage import is_of_plan
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.index import StoreIndex, read_index


def print_written(output: str) -> None:
    """Print what came of `write`; of a task of an array, where its others stand."""
    folder = as_path(output)
    manifest = set_of_plan(current_manifest(folder), read_plan_header(folder / PLAN_NAME))
    if manifest is None:
        say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))
    else:
        say_set(output, manifest, GpuConfig())


def set_of_plan(manifest: Manifest | None, header: PlanHeader) -> Manifest | None:
    """The manifest, if it is of a plan's set and not of an earlier one's."""
    return manifest if manifest is not None and is_of_plan(manifest, header.fingerprint) else None


def say_set(output: str, manifest: Manifest, config: GpuConfig) -> None:
    """Say what a set holds, and what to do with it.

    Args:
        config: with what `hbpack report` predicts times; a set does not keep it.
    """
    report = shown_command("hbpack", "report", output, *shown_options(config, GpuConfig))
    train = f'train with packer_cli.loader.PackedDataset("{output}", rank, {manifest.num_gpus})'
    steps = [shown_command("hbpack", "show", output), report, train]
    if manifest.sets_aside:
        steps.append(f'evaluate with PackedDataset("{as_path(output) / VALIDATION}", rank, {manifest.num_gpus})')
    say_next(f"{output} holds {describe_set(manifest)}", *steps)


@dataclass(frozen=True, kw_only=True)
class StoreOutput:
    """`hbpack tokenize`."""

    output: str
    """The folder, as it was named; the store is its `tokens`."""
    is_complete: bool
    """False after a task of a job array whose others are not done."""
    num_samples: int
    num_tokens: int
    num_loss_tokens: int
    num_rejected: int
    num_without_loss: int
    """Those of the rejected in which no token carries a loss."""
    num_parts: int
    """Files of the store."""


def print_store(output: str, index: StoreIndex | None, *, as_json: bool) -> None:
    """Print what came of `tokenize`.

    Args:
        index: None after a task of an array.
    """
    if index is None:
        with suppress(InputError):  # Its other tasks are not done.
            index = read_index(as_path(output) / TOKENS)
    parts = index.parts if index else ()
    record = StoreOutput(
        output=output,
        is_complete=index is not None,
        num_samples=sum(part.num_samples for part in parts),
        num_tokens=sum(part.num_tokens for part in parts),
        num_loss_tokens=sum(part.num_loss_tokens for part in parts),
        num_rejected=sum(part.num_rejected for part in parts),
        num_without_loss=sum(part.num_without_loss for part in parts),
        num_parts=len(parts),
    )
    if as_json:
        print_json(record)
    elif index is None:
        say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))
    else:
        what = f"{counted(record.num_samples, 'sample')}, {counted(record.num_tokens, 'token')}"
        say_next(
            f"{as_path(output) / TOKENS} holds {what}",
            f"{shown_command('hbpack', 'plan', output)} --groups GROUPS --gpus N",
        )


@dataclass(frozen=True, kw_only=True)
class RebalanceOutput:
    """`hbpack rebalance`."""

    output: str
    num_gpus: int
    first_epoch: int
    first_step: int
    """Where training goes on."""
    num_iterations: int
    """Left in the first epoch, as are the steps."""
    num_steps: int
    overall: OverallMetrics
    """Of whole epochs from now on."""


def print_rebalanced(output: str, manifest: Manifest, *, as_json: bool) -> None:
    """Print what came of `rebalance`."""
    first = manifest.epochs[0]
    if as_json:
        print_json(
            RebalanceOutput(
                output=output,
                num_gpus=manifest.num_gpus,
                first_epoch=manifest.first_epoch,
                first_step=first.first_step,
                num_iterations=first.num_iterations,
                num_steps=first.num_steps,
                overall=manifest.metrics.overall,
            )
        )
        return
    start = f"step {first.first_step} of epoch {manifest.first_epoch}"
    say_next(
        f"{output} has manifests for {counted(manifest.num_gpus, 'rank')}",
        f"train on {counted(manifest.num_gpus, 'GPU')}, from {start} on",
    )


@dataclass(frozen=True, kw_only=True)
class ExportOutput:
    """`hbpack export`."""

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


def print_exported(
    folder: str, output: str | None, format_name: str | None, pushed_to: str | None, *, as_json: bool
) -> None:
    """Print what came of `export`.

    Args:
        folder: of the packed set.
        pushed_to: the data set on the Hub that has the export, or without one the packed set.
    """
    export = read_listing(as_path(output)) if output else None
    is_complete = output is None or export is not None
    record = ExportOutput(output=output, format=format_name, pushed_to=pushed_to, is_complete=is_complete)
    if export is not None:
        files = export["files"]
        record = replace(
            record,
            num_rows=export["num_rows"],
            num_samples=export["num_samples"],
            num_tokens=export["num_tokens"],
            num_files=len({file["path"] for file in files}),  # Parts may share one.
            num_bytes=sum(file["num_bytes"] for file in files),
        )
    if as_json:
        print_json(record)
    elif output is None or format_name is None:
        say_next(f"Pushed {folder} to {pushed_to}", f'train with train_dataset="hf://datasets/{pushed_to}"')
    elif export is None:
        say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))
    else:
        _say_exported(output, format_name, record, export)


def _say_exported(output: str, format_name: str, record: ExportOutput, listing: ExportListing) -> None:
    """Say what an export holds, and how to use it."""
    assert record.num_rows is not None
    assert record.num_bytes is not None
    what = f"{counted(record.num_rows, 'pack')} in the format of {format_name}, {format_bytes(record.num_bytes)}"
    format = load_format(format_name)
    where = f"docs/export.md, {format_name}" if format_name in FORMATS else "its package says how"
    steps = [f"{format.usage_of(output, listing) or 'load it in your trainer'} ({where})"]
    if record.pushed_to and format.hub_files:
        steps.insert(0, f'load_dataset("{record.pushed_to}")')
    say_next(f"{output} holds {what}", *steps)
