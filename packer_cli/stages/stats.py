"""`hbpack stats`: the figures of a packed set, of a token store or of lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packer_cli.config import PlanConfig
from packer_cli.config.rules import plan_rules, refuse_padded, with_known_cost
from packer_cli.format.choice import GroupChoice
from packer_cli.format.constants import PLAN_NAME, Mask
from packer_cli.format.metrics import PlanMetrics, SampleCounts
from packer_cli.format.records import known_values, sort_keys
from packer_cli.plan.figures import Baseline, LengthStats, baseline_of, length_stats, plan_stats, prove_by_program
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.samples import Samples, sample_counts
from packer_cli.plan.sparsity import Sparsity, measure_sparsity
from packer_cli.plan.types import Plan
from packer_cli.stages.planning import plan_samples
from packer_cli.stages.samples import require_samples
from packer_cli.stages.set_plan import SetPlan, read_set_plan


@dataclass(frozen=True, kw_only=True)
class PlanStats:
    """The figures of a plan."""

    counts: SampleCounts
    metrics: PlanMetrics
    masks: tuple[Sparsity, ...]
    """What the attention mask leaves out, of each group's packs, and last of all packs."""
    mask: Mask
    """That of the plan."""
    plan: Plan
    """As it is trained."""
    config: PlanConfig
    """The options that it was made with."""
    rules: PlanRules
    """The same, parsed, on as many GPUs as it has now."""
    baseline: Baseline | None = None
    """What it is compared with; None of a plan that was read, which holds the baseline's figures."""
    read_from: SetPlan | None = None
    """None of lengths that were planned."""

    @property
    def is_rebalanced(self) -> bool:
        """Whether the metrics are those after `hbpack rebalance`, and not the plan file's."""
        return self.read_from is not None and self.read_from.is_rebalanced


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What is known of a path."""

    lengths: LengthStats | None = None
    """None of a plan that was read."""
    group_choice: GroupChoice | None = None
    plan: PlanStats | None = None
    """None of lengths that were not planned."""
    samples: Samples | None = None
    """None of a plan that was read."""

    def values(self) -> dict[str, Any]:
        """JSON values. What a plan file says has its keys in order, as there."""
        values: dict[str, Any] = {}
        if self.lengths:
            values["lengths"] = self.lengths.values()
        if self.group_choice:
            values["group_choice"] = asdict(self.group_choice)
        if self.plan:
            counts, metrics = asdict(self.plan.counts), known_values(self.plan.metrics)
            if not self.lengths:
                counts = sort_keys(counts)
                metrics = metrics if self.plan.is_rebalanced else sort_keys(metrics)
            *groups, overall = map(asdict, self.plan.masks)
            names = [group.name for group in self.plan.metrics.groups]
            masks = [{"name": name, **group} for name, group in zip(names, groups, strict=True)]
            values |= {
                "counts": counts,
                **metrics,
                "masks": {"mask": self.plan.mask, "overall": overall, "groups": masks},
            }
        return values


def stats_of(path: Path, config: PlanConfig | None, *, by_program: bool = False) -> Stats:
    """The figures of what lies at a path; without a config, lengths are not planned.

    Args:
        by_program: also prove the least number of packs, see `plan.figures.prove_by_program`.

    Raises:
        InputError: the path has no lengths.
        ConfigError: the packed set is planned already, and keeps no tokens to plan again.
    """
    if path.name == PLAN_NAME and path.is_file():
        path = path.parent
    if config is None and (path / PLAN_NAME).exists():
        read = read_set_plan(path)
        metrics = prove_by_program(read.metrics, read.plan) if by_program else read.metrics
        found = PlanStats(
            counts=read.header.counts,
            metrics=metrics,
            masks=_masks(read.plan),
            mask=read.plan.mask,
            plan=read.plan,
            config=read.header.config,
            rules=read.rules,
            read_from=read,
        )
        return Stats(plan=found)
    samples = require_samples(path)
    lengths, choice = length_stats(samples.lengths), None
    if config is None:
        return Stats(lengths=lengths, samples=samples)
    refuse_padded(config)
    config = with_known_cost(config)
    if config.is_auto:
        from packer_cli.groups.auto import resolve

        config, choice = resolve(config, samples.epoch_lengths(config.seed))
    rules = plan_rules(config)
    plan = plan_samples(samples, config)
    chosen, capacity = samples.chosen(config.seed), rules.groups[-1].capacity
    counts = sample_counts(samples.lengths, chosen, plan.pieces, capacity, config.overflow)
    baseline = baseline_of(plan, rules)
    metrics = plan_stats(plan, rules, samples.sources, baseline)
    if by_program:
        metrics = prove_by_program(metrics, plan)
    planned = PlanStats(
        counts=counts,
        metrics=metrics,
        masks=_masks(plan),
        mask=plan.mask,
        plan=plan,
        config=config,
        rules=rules,
        baseline=baseline,
    )
    return Stats(lengths=lengths, group_choice=choice, plan=planned, samples=samples)


def _masks(plan: Plan) -> tuple[Sparsity, ...]:
    return tuple(measure_sparsity(plan, group) for group in (*range(len(plan.groups)), None))
