"""`hbpack stats`: the figures of a packed set, of a token store or of lengths."""

from __future__ import annotations

from pathlib import Path

from packer_cli.commands.planned import Planned, plan_in_memory, read_planned
from packer_cli.commands.samples import require_samples
from packer_cli.config import PlanConfig
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.core.pieces import Samples
from packer_cli.plan.figures import Stats, length_stats, measure_masks, prove_by_program
from packer_cli.shards.plan_file import check_plan_file


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
    if by_program:
        metrics = prove_by_program(metrics, plan)
    return Stats(
        lengths=None if planned.samples is None else length_stats(planned.samples.lengths),
        group_choice=planned.group_choice,
        counts=planned.counts,
        overall=metrics.overall,
        groups=metrics.groups,
        baseline=metrics.baseline,
        masks=measure_masks(plan, metrics),
    )
