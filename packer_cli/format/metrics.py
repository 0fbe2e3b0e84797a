"""The figures of a plan: the records of `counts` and `metrics`, in `plan.arrow`, in `hbpack.json` and in `--json`.

`packer_cli.plan` computes them. Fields that are None are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ItemCounts:
    """Counts of the items of a set with trees by what became of them, each counted once."""

    pairs: int = 0
    pairs_cut: int = 0
    """Pairs of which the completions were cut off."""
    pairs_left_out: int = 0
    groups: int = 0
    groups_cut: int = 0
    groups_left_out: int = 0
    conversations: int = 0
    conversations_divided: int = 0
    """Conversations whose turns are in several pieces, which repeat their path."""
    turns: int = 0
    turns_cut: int = 0
    turns_left_out: int = 0
    samples_cut: int = 0
    """Samples that are alone and were cut."""
    samples_left_out: int = 0
    over_path_limit: int = 0
    """Items that fit by their tokens and are over `--max-path-tokens`; each is in one of the counts above, too."""


@dataclass(frozen=True, kw_only=True)
class TreeFigures:
    """The savings of shared prefixes, an epoch. A piece is an item or, of divided turns, some of its branches."""

    tokens_padded: int
    """Tokens of a padded batch a piece: its branches, padded to the longest of them. TRL pads a batch of one pair so;
    its larger batches pad more."""
    tokens_flat: int
    """Tokens of the branches one by one."""
    tokens_unique: int
    """Tokens with those of shared prefixes counted once."""
    attention_flat: int
    """Attention work of the branches one by one: the sum of their squared lengths."""
    attention_tree: int
    """Attention work of the trees: the sum of (p + n)^2 - p^2 over segments of n tokens below p others."""
    path_tokens: int
    """K: tokens of the paths of all leaves, which a varlen kernel gathers in every layer."""


@dataclass(frozen=True, kw_only=True)
class InputCounts:
    """An input's part of an epoch."""

    samples: int
    tokens: int
    loss_tokens: int | None = None
    """None: of lengths alone, or of a set that is older than this count."""
    duplicates: int | None = None
    """Its samples that are exact duplicates of earlier ones of any input, each once; None: they were not looked
    for."""


@dataclass(frozen=True, kw_only=True)
class NamedInput(InputCounts):
    """An input's part of an epoch, with its name."""

    name: str
    """The input, under the name given."""
    share: float
    """Share of the epoch's tokens."""


@dataclass(frozen=True, kw_only=True)
class ReasonCount:
    """Number of records that were rejected for a kind of reason."""

    reason: str
    """The reason, with `...` for what differs from record to record."""
    records: int


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """Counts of the samples by what became of them: each is in the pieces or in one of the other counts."""

    samples: int
    left_out_by_weight: int
    repeated_by_weight: int
    split: int
    truncated: int
    dropped: int
    pieces: int
    tokens: int
    items: ItemCounts | None = None
    """Counts of the items, which are samples here; None, as `trees` is, in sets without trees."""
    trees: TreeFigures | None = None
    inputs: tuple[InputCounts, ...] | None = None
    """In the order in which they were named; None for lengths alone, and a validation set."""

    @property
    def unit(self) -> str:
        """The noun for what is counted as samples."""
        return "sample" if self.items is None else "item"


@dataclass(frozen=True, kw_only=True)
class Counts(SampleCounts):
    """Counts of the records of a token store by what became of them."""

    records: int
    """All records; the records of a validation set are its samples alone."""
    rejected: int
    records_with_special_tokens: int
    records_without_loss: int | None = None
    """Rejected records in which no token carries a loss; None: the set is older than this count."""
    pieces_without_loss: int | None = None
    """Pieces of cut samples in which no token carries a loss; None: the set is older than this count."""
    loss_tokens: int | None = None
    """Loss tokens of an epoch; only where tokens have weights."""
    loss_weight: float | None = None
    """The sum of the weights of an epoch's loss tokens; only where tokens have weights."""
    reasons: tuple[ReasonCount, ...] | None = None
    """The rejected records by the kind of reason, the most frequent first; None: there are none, or the set is older
    than these counts."""
    not_used: dict[str, int] | None = None
    """Records that hold something which is not used, by what it is; None: there are none."""
    duplicates: int | None = None
    """Exact duplicates of earlier samples, which are among the samples, too; None unless `--dedup report`."""
    duplicates_left_out: int | None = None
    """Exact duplicates of earlier samples, also of those set aside; None unless `--dedup drop`."""

    @property
    def set_aside(self) -> int:
        """The number of samples that `--validation` sets aside; no count but `records` has them."""
        return self.records - self.rejected - self.samples - (self.duplicates_left_out or 0)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Figures of a set of iterations. Ratios are in 0..1, and lower is better."""

    dbr: float
    """Dist balance ratio: sum_i (T_max - T_i) / (T_max N), mean over iterations; T_i is a DP rank's tokens, padded to
    a multiple of the SP degree."""
    pr: float
    """Padding ratio: padding tokens / token slots, where a slot is a row of the iteration's row length; fillers
    count as padding."""
    alignment_pr: float | None = None
    """The part of `pr` that pads samples to a multiple of their group's `align`; None if all of these are 1."""
    abr: float
    """Attention balance ratio: sum_i (A_max - A_i) / (A_max N), mean over iterations; A_i = sum of s^2."""
    abr_bound: float
    """A lower bound on the ABR of any deal of each iteration's samples to its ranks, proved by
    `plan.core.bounds.least_max_work`: above 0 if a long sample makes balance impossible."""
    cbr: float | None = None
    """Cost balance ratio: as ABR, but of predicted work, sum of s (s + linear), see `plan.core.cost`; None if `linear`
    is 0, as it would equal ABR."""
    cbr_bound: float | None = None
    """The lower bound on CBR, as `abr_bound` is on ABR."""
    cr: float
    """Communication ratio: tokens in iterations with SP degree > 1 / all tokens."""
    ave_t: float
    """Tokens per iteration and DP rank, mean over both."""
    cp_imbalance: float | None = None
    """Attention work of a pack's busiest CP rank over the mean of its ranks, mean over packs with a CP degree above
    1; None if there are none. Their tokens are always equal."""
    cp_imbalance_max: float | None = None
    """The greatest of any pack."""
    cp_document_share: float | None = None
    """Share of the packs with a CP degree above 1 that are sharded per document; the others are per sequence."""
    imbalance: float | None = None
    """WLB-LLM: M max_j w_j / sum_j w_j over the M micro-batches of an iteration, or with pipelines of a step, w = sum
    of s (s + linear) per GPU; mean over these. None where pipelines are unlike."""
    num_samples: int
    """Number of pieces: a sample that was cut counts once per piece."""
    num_tokens: int
    num_packs: int
    packs_lower_bound: int
    """A lower bound on the packs of the same samples with the same capacities, see `plan.core.bounds`."""
    num_iterations: int
    num_fillers: int
    """Slots without a pack."""

    @property
    def waiting(self) -> float:
        """CBR where there is one, else ABR: the share of their time that ranks wait for the slowest."""
        return self.abr if self.cbr is None else self.cbr

    @property
    def lost(self) -> float:
        """The share of the work of GPUs that is lost to padding and waiting together."""
        return 1 - (1 - self.pr) * (1 - self.waiting)


@dataclass(frozen=True, kw_only=True)
class Randomness:
    """The distance of the order of samples from a uniformly random one. Steps are optimizer steps."""

    num_steps: int
    mean_displacement: float
    """Mean distance, in steps, of a sample from its position in a seeded uniform order; for a uniform order this is a
    third of the number of steps."""
    max_displacement: int
    length_step_correlation: float
    """Pearson correlation of a sample's length with its step, over the whole epoch; 0 is random."""
    length_mix_spread: float
    """Mean over steps of the distance (half the L1 norm, in tokens) of the step's mix of lengths, in powers of two,
    from the whole epoch's: the price of sorting."""
    source_mix_spread: float
    """Mean over steps of the distance (half the L1 norm, in tokens) of the step's mix of sources from the whole
    epoch's."""


@dataclass(frozen=True, kw_only=True)
class PipelineImbalances:
    """The four imbalances that Hydraulis names; None without `--strategy hydraulis`. See docs/metrics.md."""

    sampling_within: float | None = None
    """Within an iteration: share of the tokens on a pipeline that holds longer rows than another which would do."""
    sampling_between: float | None = None
    """Between iterations: time if all steps used the one best layout over the time if each has its best, on up to 32
    steps; None if no layout holds every sample."""
    packing_within: float | None = None
    """Within a pipeline: v max_j t_j / sum_j t_j over its v micro-batches of predicted time t; their mean."""
    packing_between: float | None = None
    """Between pipelines: slowest / mean, mean over iterations."""


@dataclass(frozen=True, kw_only=True)
class QueueMetrics:
    """Figures of a queue in which long samples wait for others of like length (WLB-LLM)."""

    threshold: int
    """Tokens: the shortest sample that waits in it."""
    num_samples: int
    """Pieces: a sample that was cut counts once a piece."""
    num_tokens: int
    mean_delay: float
    """Steps, mean over tokens."""
    max_delay: int


@dataclass(frozen=True, kw_only=True)
class Delay:
    """The distance of samples from the step in which a stream would bring them; only of plans made from a stream."""

    mean_delay: float | None = None
    """Steps from a sample's arrival to its training, mean over tokens (WLB-LLM). Where several global batches are
    packed together, earlier steps count like later ones."""
    max_delay: int | None = None
    num_carried: int | None = None
    """Pieces that found no room in the step or window in which they were first tried."""
    queues: tuple[QueueMetrics, ...] | None = None
    """By rising threshold."""


# A dataclass lists the fields of its last base first.
@dataclass(frozen=True, kw_only=True)
class OverallMetrics(PipelineImbalances, Delay, Randomness, Metrics):
    """Figures of all packs."""


@dataclass(frozen=True, kw_only=True)
class _Named:
    name: str


@dataclass(frozen=True, kw_only=True)
class BaselineMetrics(Metrics, _Named):
    """Figures of the paper's baseline on the same pieces."""


@dataclass(frozen=True, kw_only=True)
class _OfGroup(_Named):
    capacity: int
    sp_size: int


@dataclass(frozen=True, kw_only=True)
class GroupMetrics(Metrics, _OfGroup):
    """Figures of one group's iterations."""


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """Figures of a plan, rounded to ten digits, since the last bits of a mean may differ between machines."""

    overall: OverallMetrics
    groups: tuple[GroupMetrics, ...]


@dataclass(frozen=True, kw_only=True)
class PlanMetrics(PlanFigures):
    """Figures of a plan beside the baseline's."""

    baseline: BaselineMetrics


HBP = "HBP's algorithm 1"
"""Name of an alternative."""


@dataclass(frozen=True, kw_only=True)
class AlternativeGroups:
    """Groups that the choice was compared with."""

    name: str
    """The way they were chosen, such as `HBP's algorithm 1`."""
    groups: str
    """The groups, as `--groups` takes them."""
    seconds: float
    """Predicted epoch time."""
    gain: float
    """Predicted time beyond the choice's, as a share of the choice's."""


@dataclass(frozen=True, kw_only=True)
class GroupChoice:
    """The chosen groups, what they were chosen for, and what they were compared with."""

    groups: str
    """The groups, as `--groups` takes them."""
    algorithm: str
    """`search`, or `hbp`."""
    parallel: str | None = None
    """The degrees of all groups, as `--parallel` takes them; None without TP, CP and pipelines."""
    lockstep: str = "all"
    """The GPUs in lockstep, as `--lockstep` takes them."""
    max_groups: int
    """Most groups that the search could choose."""
    max_length: int | None
    """Longest capacity to choose; None: the longest sample fits."""
    gpus: int
    """Number of GPUs."""
    samples: int
    """Number of samples of an epoch."""
    tokens: int
    """Number of their tokens."""
    longest: int
    """Tokens of the longest sample."""
    seconds: float | None
    """Predicted epoch time; None without a model."""
    gpu_hours: float | None
    """GPU-hours of the predicted epoch."""
    notes: tuple[str, ...]
    """For people."""
    alternatives: tuple[AlternativeGroups, ...]
    """Other groups that the choice was compared with."""
    predicted_with: Mapping[str, object]
    """The source of the predictions, see `GpuModel.origin`."""
    fingerprint: str
    """Covers every number that the choice depends on."""

    @property
    def options(self) -> str:
        """The choice, as the command line takes it."""
        parallel = f" --parallel {self.parallel}" if self.parallel else ""
        return f"--groups {self.groups}{parallel}{'' if self.lockstep == 'all' else f' --lockstep {self.lockstep}'}"
