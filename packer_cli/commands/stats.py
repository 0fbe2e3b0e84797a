"""`hbpack stats`: the figures of a packed set, of a token store or of lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packer_cli.commands.planned import Planned, plan_in_memory, read_planned
from packer_cli.commands.samples import require_samples
from packer_cli.config import PlanConfig
from packer_cli.format.constants import PLAN_NAME, Mask
from packer_cli.format.metrics import GroupChoice, PlanMetrics, SampleCounts
from packer_cli.format.records import known_values, sort_keys
from packer_cli.plan.core.pieces import Samples
from packer_cli.plan.core.segments import Sparsity, measure_sparsity
from packer_cli.plan.figures import LengthStats, length_stats, prove_by_program
from packer_cli.shards.plan_file import check_plan_file


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
    """The distribution of lengths; None of a plan that was read."""
    group_choice: GroupChoice | None = None
    """How automatic groups were chosen; None if they were named."""
    plan: PlanStats | None = None
    """The figures of the plan; None of lengths that were not planned."""

    def values(self) -> dict[str, Any]:
        """JSON values. What a plan file says has its keys in order, as there."""
        values: dict[str, Any] = {}
        if self.lengths:
            values["lengths"] = self.lengths.values()
        if self.group_choice:
            values["group_choice"] = asdict(self.group_choice)
        if self.plan:
            counts, metrics = known_values(self.plan.counts), known_values(self.plan.metrics)
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
        return plan_figures_of(read_planned(path, check=by_program), by_program=by_program)
    return sample_stats(require_samples(path), config, by_program=by_program)


def sample_stats(samples: Samples, config: PlanConfig | None, *, by_program: bool = False) -> Stats:
    """The figures of samples, and with a config also those of their plan; see `stats_of`."""
    if config is None:
        return Stats(lengths=length_stats(samples.lengths))
    return plan_figures_of(plan_in_memory(samples, config), by_program=by_program)


def plan_figures_of(planned: Planned, *, by_program: bool = False) -> Stats:
    """The figures of a plan; see `stats_of`."""
    metrics, plan = planned.metrics, planned.arrays
    found = PlanStats(
        counts=planned.counts,
        metrics=prove_by_program(metrics, plan) if by_program else metrics,
        masks=tuple(measure_sparsity(plan, group) for group in (*range(len(plan.groups)), None)),
        mask=plan.mask,
        is_rebalanced=planned.is_rebalanced,
    )
    if planned.samples is None:
        return Stats(plan=found)
    return Stats(lengths=length_stats(planned.samples.lengths), group_choice=planned.group_choice, plan=found)
