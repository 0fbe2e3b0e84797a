"""The figures of `hbpack stats`: a plan's metrics, next to those of the paper's baseline on the same data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.format import metrics as records
from packer_cli.format.constants import Mask
from packer_cli.format.tokens import InputInfo
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.attention_rates import ShardingRule
from packer_cli.plan.core.metrics import measure, measure_each, pieces_of_group
from packer_cli.plan.core.randomness import measure_delay, measure_randomness
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.segments import Sparsity, align_up, aligned_lengths, measure_sparsity
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.kernels.balance import BalanceRule
from packer_cli.plan.packing.ilp.columns import lp_lower_bound
from packer_cli.plan.strategies.protocol import PlanRequest, Strategy
from packer_cli.plan.strategies.registry import BASELINE, STRATEGIES

BASELINE_NAME = Strategy.baseline_name


def as_in_text(baseline: str) -> str:
    """Return the name of a baseline in a sentence."""
    return "naive packing" if baseline == BASELINE_NAME else baseline


class Baseline(NamedTuple):
    """Plan to compare with: the same samples, as the strategy's authors packed them before."""

    name: str
    plan: Plan


def baseline_of(plan: Plan, request: PlanRequest) -> Baseline:
    """Plan the baseline that the strategy names or, without one, HBP's naive packing. Price: one ISF packing, or O(m).

    The baseline has about as many tokens in a step as the plan. CP ranks divide its rows per sequence.

    Args:
        request: that of the plan, on as many GPUs as it has now.
    """
    own = request.strategy.baseline(plan, request)
    if own is None:
        return Baseline(BASELINE_NAME, _naive_plan(plan, request, "isf"))
    pieces, asked = own
    asked = replace(asked, epochs=1, sharding=ShardingRule(choice="sequence"))
    return Baseline(request.strategy.baseline_name, build_plan(pieces, asked))


def padded_baseline(plan: Plan, request: PlanRequest) -> Plan | None:
    """Plan the samples in random batches, as large as fit, padded to their longest sample. Price: O(m).

    Return None where rows are more than samples one after another, which such batches cannot be.

    Args:
        request: as in `baseline_of`.
    """
    return None if request.shapes_rows else _naive_plan(plan, request, "padded")


def _naive_plan(plan: Plan, request: PlanRequest, packing: str) -> Plan:
    """Plan naive ISF packing at the longest length (HBP, tables 2 and 6) with its defaults, or another packing.

    The replicas may not divide the GPUs of a plan that mixes degrees; then the plan runs on as many as it can.
    """
    strategy, longest = STRATEGIES[BASELINE], plan.groups[-1]
    algorithm = strategy.packings()[packing]
    asked = PlanRequest(
        strategy=strategy,
        groups=(longest,),
        num_gpus=longest.num_dp_ranks(plan.num_gpus) * longest.num_gpus,
        algorithm=algorithm,
        packing_options=algorithm.options(),
        seed=request.seed,
        steps=StepRules(global_tokens=request.steps.global_tokens, longest_first=request.steps.longest_first),
        lockstep=plan.lockstep,
        balance=BalanceRule(window=None),
        max_samples=plan.max_samples,
        mask=plan.mask,
        limits=plan.limits,
        sharding=ShardingRule(choice="sequence"),
    )
    return build_plan(plan.pieces, asked)


def plan_stats(
    plan: Plan, request: PlanRequest, source_of_sample: NDArray[Any] | None = None, baseline: Baseline | None = None
) -> records.PlanMetrics:
    """Measure a plan beside the baseline. Price: that of `baseline_of`, and O(slots).

    Args:
        request: that of the plan, on as many GPUs as it has now; a linear term adds `cbr` and `cbr_bound`.
        baseline: what `baseline_of` makes, if it is made already.
    """
    figures = plan_figures(plan, request, source_of_sample)
    baseline = baseline or baseline_of(plan, request)
    return records.PlanMetrics(
        **vars(figures),
        baseline=records.BaselineMetrics(
            name=baseline.name, **_rounded(measure(baseline.plan, linear=request.linear))
        ),
    )


def plan_figures(
    plan: Plan, request: PlanRequest, source_of_sample: NDArray[Any] | None = None
) -> records.PlanFigures:
    """Measure a plan without the baseline; arguments as of `plan_stats`. Price: O(slots)."""
    overall, *by_group = map(_rounded, measure_each(plan, [None, *range(len(plan.groups))], request.linear))
    own = _rounded(records.PipelineImbalances(**request.strategy.figures(plan, request)))
    randomness = _rounded(measure_randomness(plan, source_of_sample, request.seed))
    return records.PlanFigures(
        overall=records.OverallMetrics(**overall, **randomness, **_rounded(measure_delay(plan)), **own),
        groups=tuple(
            records.GroupMetrics(name=group.name(g), capacity=group.capacity, sp_size=group.sp_size, **measured)
            for g, (group, measured) in enumerate(zip(plan.groups, by_group, strict=True))
        ),
    )


F = TypeVar("F", bound=records.PlanFigures)
M = TypeVar("M", bound=records.Metrics)


def prove_by_program(figures: F, plan: Plan) -> F:
    """Raise each `packs_lower_bound` of a plan's figures to `lp_lower_bound`.

    Price: one linear program for each group with more packs than its bound so far, and for the baseline, if present.

    Raises:
        RunError: PuLP has no solver.
    """
    lengths = aligned_lengths(plan.pieces, plan.packs, plan.groups)
    groups = tuple(
        _with_proof(metrics, lengths[pieces_of_group(plan, g)], group.capacity)
        for g, (group, metrics) in enumerate(zip(plan.groups, figures.groups, strict=True))
    )
    # A pack is of one group, so the bound on all is the sum of theirs.
    overall = replace(figures.overall, packs_lower_bound=sum(metrics.packs_lower_bound for metrics in groups))
    proved = replace(figures, groups=groups, overall=overall)
    if isinstance(proved, records.PlanMetrics):
        longest = plan.groups[-1]
        baseline = _with_proof(proved.baseline, align_up(plan.pieces.length, longest.align), longest.capacity)
        return replace(proved, baseline=baseline)
    return proved


def _with_proof(metrics: M, lengths: Int32Array, capacity: int) -> M:
    if metrics.num_packs <= metrics.packs_lower_bound:
        return metrics
    return replace(metrics, packs_lower_bound=max(lp_lower_bound(lengths, capacity), metrics.packs_lower_bound))


@dataclass(frozen=True, kw_only=True)
class LengthStats:
    """The distribution of lengths."""

    num_samples: int
    num_tokens: int
    mean: float
    p50: int
    """The median; the next are percentiles, too."""
    p90: int
    p99: int
    p99_9: int
    max: int
    tokens_over_8k: int
    """Tokens in samples over that length, as the next."""
    tokens_over_32k: int
    tokens_over_128k: int


def length_stats(lengths: Int32Array) -> LengthStats:
    """Count, total, mean, percentiles and the tokens in long samples."""
    at = (50, 90, 99, 99.9)
    percentiles = np.percentile(lengths, at, method="higher").astype(int) if len(lengths) else np.zeros(4, dtype=int)
    total = int(lengths.sum(dtype=np.int64))
    of_long = [int(lengths[lengths > limit].sum(dtype=np.int64)) for limit in (8192, 32768, 131072)]
    return LengthStats(
        num_samples=len(lengths),
        num_tokens=total,
        mean=total / len(lengths) if len(lengths) else 0.0,
        max=int(lengths.max(initial=0)),
        **dict(zip(("p50", "p90", "p99", "p99_9"), percentiles.tolist(), strict=True)),
        **dict(zip(("tokens_over_8k", "tokens_over_32k", "tokens_over_128k"), of_long, strict=True)),
    )


@dataclass(frozen=True, kw_only=True)
class NamedSparsity(Sparsity):
    """Sparsity of the masks of a group."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Sparsity of the attention mask: the scores and blocks that it leaves out."""

    mask: Mask
    """Mask of the plan."""
    overall: Sparsity
    groups: tuple[NamedSparsity, ...]


def measure_masks(plan: Plan, metrics: records.PlanFigures) -> Masks | None:
    """Measure the mask's sparsity in the packs of each group, and of all; None for trees. Price: O(pieces)."""
    if plan.pieces.work is not None:
        return None
    named = [(group.name, measure_sparsity(plan, number)) for number, group in enumerate(metrics.groups)]
    groups = tuple(NamedSparsity(name=name, **vars(figures)) for name, figures in named)
    return Masks(mask=plan.mask, overall=measure_sparsity(plan), groups=groups)


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Figures of lengths, of a plan, or of both."""

    lengths: LengthStats | None = None
    """The distribution of lengths; None of a plan that was read."""
    group_choice: records.GroupChoice | None = None
    """Choice of automatic groups; None if they were named."""
    strategy: str | None = None
    """Strategy of the plan. The strategy and the packing are None where lengths were not planned."""
    packing: str | None = None
    """The packing; None also where the strategy takes none."""
    counts: records.Counts | records.SampleCounts | None = None
    """Counts of the samples that were kept, cut or left out."""
    overall: records.OverallMetrics | None = None
    """The figures of all packs."""
    groups: tuple[records.GroupMetrics, ...] | None = None
    """Metrics of each group."""
    baseline: records.BaselineMetrics | None = None
    """Metrics of the plan that it is compared with."""
    masks: Masks | None = None
    """Sparsity of the attention mask; None for trees."""
    trees: records.TreeFigures | None = None
    """Savings of shared prefixes, of samples that were not planned; of a plan, `counts` have them."""
    sources: tuple[InputInfo, ...] | None = None
    """The inputs, and what was read of each; None of lengths alone."""
    inputs: tuple[records.NamedInput, ...] | None = None
    """Each input's part of an epoch; None without a plan, and of a validation set."""
    reasons: tuple[records.ReasonCount, ...] | None = None
    """The rejected records of a token store by the kind of reason, the most frequent first; `counts` of a packed set
    have them."""

    @property
    def unit(self) -> str:
        """The noun for what was planned, or would be: "sample" or "item"."""
        of_lengths = "sample" if self.trees is None else "item"
        return of_lengths if self.counts is None else self.counts.unit

    @property
    def metrics(self) -> records.PlanMetrics | None:
        """The figures of the plan; None without one."""
        if self.overall is None or self.groups is None or self.baseline is None:
            return None
        return records.PlanMetrics(overall=self.overall, groups=self.groups, baseline=self.baseline)


def _rounded(
    record: records.Metrics | records.Randomness | records.Delay | records.PipelineImbalances,
) -> dict[str, Any]:
    return {name: round(value, 10) if isinstance(value, float) else value for name, value in vars(record).items()}
