"""The records of plans and their figures: `hbpack pack`, `plan`, `stats`, `compare`, `simulate`, `report`, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from packer_cli.cli.outputs.base import Output
from packer_cli.compare.savings import Savings
from packer_cli.format.metrics import BaselineMetrics, Counts, GroupChoice, GroupMetrics, OverallMetrics, SampleCounts
from packer_cli.plan.core.segments import Sparsity
from packer_cli.simulate.figures import EpochFigures, GroupFigures, OverallFigures


@dataclass(frozen=True, kw_only=True)
class NamedOverall(OverallFigures):
    """A predicted epoch with a name."""

    name: str


@dataclass(frozen=True, kw_only=True)
class PlanPrediction(Output):
    """`hbpack simulate` of a packed set or a plan; also a part of what `pack`, `plan` and `append` print."""

    predicted_with: dict[str, Any]
    """Source of the times: a profile, or a model's shape and a data sheet with its assumptions."""
    overall: OverallFigures
    groups: tuple[GroupFigures, ...]
    notes: tuple[str, ...]
    """For people."""
    baseline: NamedOverall
    saves: Savings
    """Over the baseline."""
    padded: OverallFigures | None = None
    """The same samples in padded batches, as in a trainer that does not pack."""


@dataclass(frozen=True, kw_only=True)
class NamedSparsity(Sparsity):
    """What the masks of a group leave out."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Masks(Output):
    """What the attention mask leaves out."""

    mask: str
    overall: Sparsity
    groups: tuple[NamedSparsity, ...]


@dataclass(frozen=True, kw_only=True)
class StatsOutput(Output):
    """`hbpack stats`: lengths, a plan, or both."""

    lengths: dict[str, float] | None = None
    """Numbers of samples and tokens, mean, percentiles, maximum, and tokens of samples over some lengths."""
    group_choice: GroupChoice | None = None
    counts: Counts | SampleCounts | None = None
    overall: OverallMetrics | None = None
    groups: tuple[GroupMetrics, ...] | None = None
    baseline: BaselineMetrics | None = None
    masks: Masks | None = None


@dataclass(frozen=True, kw_only=True)
class RowOutput(Output):
    """A row of a comparison."""

    name: str
    """As `--algorithms` or `--strategies` take it."""
    kind: Literal["packing", "balance", "baseline", "strategy", "chosen"]
    note: str
    is_own: bool
    """Whether it is what the options themselves plan."""
    options: dict[str, str]
    """Of the plan, as `hbpack plan` takes them."""
    error: str | None
    """Why it failed; the figures are of rows that did not."""
    seconds: float | None = None
    """Time to plan."""
    peak_bytes: int | None = None
    """Memory to plan."""
    cut_off: bool | None = None
    """Whether a packing used up its time limit."""
    overall: OverallMetrics | None = None
    groups: tuple[GroupMetrics, ...] | None = None
    simulation: EpochFigures | None = None
    """With a model of time."""
    saves: Savings | None = None
    """Over naive packing."""


@dataclass(frozen=True, kw_only=True)
class CompareOutput(Output):
    """`hbpack compare`, and `hbpack simulate` with `--groups`."""

    predicted_with: dict[str, Any] | None = None
    config: dict[str, Any]
    """The plan options that the rows were derived from."""
    lengths: dict[str, float]
    counts: SampleCounts
    rows: tuple[RowOutput, ...]
    attention_share: float | None = None
    """Share of the computing time that attention takes; with a model of time."""
    advice: str | None = None
    """Which strategy to take, of those with predicted epochs."""
    group_choice: GroupChoice | None = None


@dataclass(frozen=True, kw_only=True)
class SectionOutput(Output):
    """A section of the page."""

    name: str
    """Its anchor."""
    title: str
    charts: tuple[str, ...]
    """Their names."""
    tables: tuple[str, ...]
    """Their titles."""
    missing: str | None = None
    """Which option adds what is left out."""


@dataclass(frozen=True, kw_only=True)
class ReportOutput(Output):
    """`hbpack report`."""

    output: str
    """The page, as it was named."""
    num_bytes: int
    next_steps: tuple[str, ...]
    """What to try next, the most important first."""
    sections: tuple[SectionOutput, ...]
    stats: StatsOutput
    """As `hbpack stats --json` prints it."""
    simulation: PlanPrediction | None = None
    """As `hbpack simulate --json` prints it."""
    comparison: CompareOutput | None = None
    """The plan beside others of the same samples, as `hbpack compare --json` prints it."""


@dataclass(frozen=True, kw_only=True)
class CandidateOutput(Output):
    """A length and an SP degree that `hbpack groups` tried."""

    length: int
    sp_size: int
    checkpoint_layers: int
    seconds: float | None
    """An iteration; null if it does not fit."""
    seconds_per_token: float | None
    memory_bytes: float | None
    fits: bool
    measured: bool
    mark: str
    """`best`, `best of its length`, `chosen`, or empty."""


@dataclass(frozen=True, kw_only=True)
class GroupsOutput(GroupChoice):
    """`hbpack groups`."""

    candidates: tuple[CandidateOutput, ...]


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
