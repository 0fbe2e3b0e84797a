"""`hbpack stats`: the figures of a packed set, of a token store or of lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packer_cli.config import PlanConfig
from packer_cli.config.rules import plan_rules, refuse_padded, with_known_cost
from packer_cli.format.choice import GroupChoice
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, Mask
from packer_cli.format.metrics import PlanMetrics, SampleCounts
from packer_cli.format.records import known_values, sort_keys
from packer_cli.plan.figures import LengthStats, length_stats, plan_stats, prove_by_program
from packer_cli.plan.samples import sample_counts
from packer_cli.plan.sparsity import Sparsity, measure_sparsity
from packer_cli.plan.types import Plan
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import check_plan_file, read_plan, read_plan_header
from packer_cli.stages.planning import plan_samples
from packer_cli.stages.samples import require_samples


@dataclass(frozen=True, kw_only=True)
class PlanStats:
    """The figures of a plan."""

    counts: SampleCounts
    metrics: PlanMetrics
    masks: tuple[Sparsity, ...]
    """What the attention mask leaves out, of each group's packs, and last of all packs."""
    mask: Mask
    """That of the plan."""
    is_rebalanced: bool = False
    """Whether the metrics are those after `hbpack rebalance`, and not the plan file's."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What is known of a path."""

    lengths: LengthStats | None = None
    """None of a plan that was read."""
    group_choice: GroupChoice | None = None
    plan: PlanStats | None = None
    """None of lengths that were not planned."""

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
        check_plan_file(path / PLAN_NAME)
        header = read_plan_header(path / PLAN_NAME)
        manifest = read_manifest(path) if (path / MANIFEST_NAME).exists() else None
        is_rebalanced = manifest is not None and bool(manifest.history)
        metrics = manifest.metrics if manifest and is_rebalanced else header.metrics
        plan = read_plan(path / PLAN_NAME, check=by_program)[0]
        if by_program:
            metrics = prove_by_program(metrics, plan)
        found = PlanStats(
            counts=header.counts, metrics=metrics, masks=_masks(plan), mask=plan.mask, is_rebalanced=is_rebalanced
        )
        return Stats(plan=found)
    samples = require_samples(path)
    lengths, choice = length_stats(samples.lengths), None
    if config is None:
        return Stats(lengths=lengths)
    refuse_padded(config)
    config = with_known_cost(config)
    if config.is_auto:
        from packer_cli.groups.auto import resolve

        config, choice = resolve(config, samples.epoch_lengths(config.seed))
    rules = plan_rules(config)
    plan = plan_samples(samples, config)
    chosen, capacity = samples.chosen(config.seed), rules.groups[-1].capacity
    counts = sample_counts(samples.lengths, chosen, plan.pieces, capacity, config.overflow)
    metrics = plan_stats(plan, rules, samples.sources)
    if by_program:
        metrics = prove_by_program(metrics, plan)
    planned = PlanStats(counts=counts, metrics=metrics, masks=_masks(plan), mask=plan.mask)
    return Stats(lengths=lengths, group_choice=choice, plan=planned)


def _masks(plan: Plan) -> tuple[Sparsity, ...]:
    return tuple(measure_sparsity(plan, group) for group in (*range(len(plan.groups)), None))
