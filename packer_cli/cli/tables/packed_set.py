"""The end of the commands that plan and write a set: figures or JSON, and what to do next."""

from __future__ import annotations

import click

from packer_cli.cli.console import say_next, shown_command
from packer_cli.cli.outputs.base import print_json
from packer_cli.cli.outputs.packed_set import SetOutput, WrittenShards
from packer_cli.cli.tables.plan import print_counts, print_stats
from packer_cli.cli.tables.simulate import print_prediction
from packer_cli.compare.savings import PlanSimulation
from packer_cli.config import GpuConfig
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import Counts
from packer_cli.remote.names import as_path
from packer_cli.shards.stage import is_of_plan
from packer_cli.sizes import counted
from packer_cli.stages.planned import Planned, read_planned
from packer_cli.stages.simulate import predict_plan
from packer_cli.stages.write import describe_set


def print_set(output: str, config: GpuConfig | None, *, as_json: bool) -> None:
    """Print what came of `pack`, `plan` or `append`: the figures of the plan, its predicted epoch, and its set.

    Args:
        config: with what an epoch is predicted, if it names a model; None for the plan's own options.
    """
    folder = as_path(output)
    planned = read_planned(folder)
    prediction = predict_plan(planned, config or planned.config)
    if as_json:
        _print_record(output, planned, prediction)
        return
    counts = planned.counts
    print_counts(counts)
    print_stats(planned.metrics)
    if counts.dropped or counts.truncated or (isinstance(counts, Counts) and counts.rejected):
        click.echo(f"  records left out or cut, with reasons: {folder / REJECTED_NAME}")
    if prediction is not None:
        print_prediction(prediction)
    _say_set(output, planned)


def print_written(output: str, *, as_json: bool) -> None:
    """Print what came of `write`; of a task of an array, where its others stand."""
    planned = read_planned(as_path(output))
    if as_json:
        _print_record(output, planned, None)
    elif _manifest(planned) is None:
        say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))
    else:
        _say_set(output, planned)


def _manifest(planned: Planned) -> Manifest | None:
    """That of the plan's set; None if there is none, or one of an earlier plan."""
    assert planned.header is not None
    manifest = planned.manifest
    return manifest if manifest is not None and is_of_plan(manifest, planned.header.fingerprint) else None


def _say_set(output: str, planned: Planned) -> None:
    manifest = _manifest(planned)
    if manifest is None:
        packs = counted(planned.metrics.overall.num_packs, "pack")
        what = f"{output} has a plan of {packs} for {counted(planned.config.gpus, 'GPU')}, no shards"
        say_next(what, shown_command("hbpack", "write", output))
        return
    train = f'train with packer_cli.loader.PackedDataset("{output}", rank, {manifest.num_gpus})'
    say_next(f"{output} holds {describe_set(manifest)}", shown_command("hbpack", "show", output), train)


def _print_record(output: str, planned: Planned, prediction: PlanSimulation | None) -> None:
    manifest, metrics = _manifest(planned), planned.metrics
    print_json(
        SetOutput(
            output=output,
            counts=planned.counts,
            overall=metrics.overall,
            groups=metrics.groups,
            baseline=metrics.baseline,
            group_choice=planned.group_choice,
            prediction=prediction and prediction.values(),  # type: ignore[arg-type]  # JSON values of that record.
            shards=None
            if manifest is None
            else WrittenShards(
                num_shards=len(list(manifest.shards)),
                num_bytes=sum(shard.num_bytes for shard in manifest.shards),
                num_gpus=manifest.num_gpus,
                num_epochs=len(manifest.epochs),
            ),
        )
    )
