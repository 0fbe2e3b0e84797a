"""The record of a plan and the set that is written from it."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.cli.outputs.base import Output
from packer_cli.cli.outputs.figures import PlanPrediction
from packer_cli.format.choice import GroupChoice
from packer_cli.format.metrics import BaselineMetrics, Counts, GroupMetrics, OverallMetrics, SampleCounts


@dataclass(frozen=True, kw_only=True)
class WrittenShards(Output):
    """The files of a packed set."""

    num_shards: int
    num_bytes: int
    """Of the shards."""
    num_gpus: int
    """Ranks with a manifest."""
    num_epochs: int
    """Epochs with manifests."""


@dataclass(frozen=True, kw_only=True)
class SetOutput(Output):
    """`hbpack pack`, `plan`, `append` and `write`."""

    output: str
    """The folder, as it was named."""
    counts: Counts | SampleCounts
    """What became of the records."""
    overall: OverallMetrics
    groups: tuple[GroupMetrics, ...]
    baseline: BaselineMetrics
    group_choice: GroupChoice | None = None
    """How automatic groups were chosen."""
    prediction: PlanPrediction | None = None
    """With `--model` and `--gpu`, or `--profile`."""
    shards: WrittenShards | None = None
    """Of a set that is complete."""
