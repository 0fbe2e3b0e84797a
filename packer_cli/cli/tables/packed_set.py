"""The end of the commands that plan: figures or JSON, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from packer_cli.cli.console import say_next, shown_command
from packer_cli.cli.tables.plan import print_counts, print_stats
from packer_cli.cli.tables.written import say_set, set_of_plan
from packer_cli.config import GpuConfig
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import Counts
from packer_cli.remote.names import as_path
from packer_cli.sizes import counted
from packer_cli.stages.planned import Planned, read_planned

if TYPE_CHECKING:
    from packer_cli.compare.savings import PlanSimulation


def print_set(output: str, config: GpuConfig, *, as_json: bool) -> None:
    """Print what came of `pack`, `plan` or `append`: the figures of the plan, its predicted epoch, and its set.

    Args:
        config: with what an epoch is predicted, if it names a model.
    """
    folder = as_path(output)
    planned = read_planned(folder)
    prediction = None
    if config.has_gpu_model:  # Importing the simulator takes 0.05 s.
        from packer_cli.stages.simulate import predict_plan

        prediction = predict_plan(planned, config)
    if as_json:
        _print_record(output, planned, prediction)
        return
    counts = planned.counts
    print_counts(counts)
    print_stats(planned.metrics)
    if counts.dropped or counts.truncated or (isinstance(counts, Counts) and counts.rejected):
        click.echo(f"  records left out or cut, with reasons: {folder / REJECTED_NAME}")
    if prediction is not None:
        from packer_cli.cli.tables.compare import print_prediction

        print_prediction(prediction)
    manifest = _manifest(planned)
    if manifest is not None:
        say_set(output, manifest, config)
        return
    packs = counted(planned.metrics.overall.num_packs, "pack")
    what = f"{output} has a plan of {packs} for {counted(planned.config.gpus, 'GPU')}, no shards"
    say_next(what, shown_command("hbpack", "write", output))


def print_record(output: str) -> None:
    """Print what came of `write`, as JSON."""
    _print_record(output, read_planned(as_path(output)), None)


def _print_record(output: str, planned: Planned, prediction: PlanSimulation | None) -> None:
    from packer_cli.cli.outputs.base import print_json
    from packer_cli.cli.outputs.figures import SetOutput, WrittenShards

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


def _manifest(planned: Planned) -> Manifest | None:
    assert planned.header is not None
    return set_of_plan(planned.manifest, planned.header)
