"""What the commands that make a set print with `--json`."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.compare.savings import PlanSimulation
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import Counts, GroupChoice, InputCounts, PlanMetrics
from packer_cli.format.tokens import SourceInfo


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """The files of a packed set."""

    num_shards: int
    num_bytes: int
    """Of the shards."""
    num_gpus: int
    """Ranks with a manifest."""
    num_epochs: int
    """Epochs with manifests."""

    @classmethod
    def of(cls, manifest: Manifest) -> WrittenShards:
        """Those of a set."""
        shards = list(manifest.shards)
        return cls(
            num_shards=len(shards),
            num_bytes=sum(shard.num_bytes for shard in shards),
            num_gpus=manifest.num_gpus,
            num_epochs=len(manifest.epochs),
        )


@dataclass(frozen=True, kw_only=True)
class NamedInput(InputCounts):
    """An input's part of an epoch."""

    name: str
    """The input, under the name given."""
    share: float
    """Share of the epoch's tokens."""


@dataclass(frozen=True, kw_only=True)
class SetOutput(PlanMetrics):
    """`hbpack pack`, `plan`, `append` and `write`."""

    output: str
    """The folder, as it was named."""
    counts: Counts
    """What became of the records."""
    inputs: tuple[NamedInput, ...] | None = None
    """Each input's part of an epoch, where there are several."""
    group_choice: GroupChoice | None = None
    """How automatic groups were chosen."""
    prediction: PlanSimulation | None = None
    """With `--model` and `--gpu`, or `--profile`."""
    sources: tuple[SourceInfo, ...] | None = None
    """The inputs of a set that is complete, each with its files that were not read."""
    shards: WrittenShards | None = None
    """Of a set that is complete."""
