"""A plan and what is known of it: made in memory from lengths, or read from a packed set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from packer_cli.commands.planning import plan_samples, resolve_for
from packer_cli.commands.rebalance import plan_in_force
from packer_cli.config import PlanConfig, PlannedConfig
from packer_cli.config.effects import refuse_without_effect
from packer_cli.config.resolve import read_options, refuse_rows_alone
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import GroupChoice, PlanMetrics, SampleCounts
from packer_cli.plan.core.pieces import Samples, sample_counts
from packer_cli.plan.core.types import Plan
from packer_cli.plan.figures import Baseline, baseline_of, padded_baseline, plan_stats
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan. Its arrays are read, and its figures are computed, when they are first asked for."""

    config: PlannedConfig
    counts: SampleCounts
    group_choice: GroupChoice | None
    """How automatic groups were chosen; None if they were named."""
    samples: Samples | None = None
    """None of a plan that was read."""
    header: PlanHeader | None = None
    """What the file of a plan that was read says beside its arrays."""
    manifest: Manifest | None = None
    """Of the packed set that a plan was read from."""
    load: Callable[[], Plan]
    measure: Callable[[Planned], PlanMetrics]

    @cached_property
    def arrays(self) -> Plan:
        """The plan itself; its errors are those of `read_plan`."""
        return self.load()

    @cached_property
    def metrics(self) -> PlanMetrics:
        """Its figures. Price: of a plan in memory, that of `plan_stats`."""
        return self.measure(self)

    @cached_property
    def baseline(self) -> Baseline:
        """What it is compared with. Price: that of `baseline_of`."""
        return baseline_of(self.arrays, self.request)

    @cached_property
    def padded(self) -> Plan | None:
        """The same samples in padded batches, see `padded_baseline`."""
        return padded_baseline(self.arrays, self.request)

    @cached_property
    def request(self) -> PlanRequest:
        """That of the plan, on as many GPUs as it has now."""
        return replace(read_options(self.config).request, num_gpus=self.arrays.num_gpus)


def plan_in_memory(samples: Samples, config: PlanConfig) -> Planned:
    """Plan samples of which only the lengths are known; the errors are those of `plan_samples`.

    Raises:
        ConfigError: the options do not fit each other or the samples, or ask for what is only compared.
    """
    refuse_rows_alone(config)
    refuse_without_effect(config)
    resolved, choice = resolve_for(config, samples)
    plan = plan_samples(samples, resolved)
    chosen, capacity = samples.chosen(config.seed), resolved.config.groups[-1].capacity
    return Planned(
        config=resolved.config,
        counts=sample_counts(samples, chosen, plan.pieces, capacity, config.overflow),
        group_choice=choice,
        samples=samples,
        load=lambda: plan,
        measure=lambda planned: plan_stats(planned.arrays, planned.request, samples.sources, planned.baseline),
    )


def read_planned(path: Path, header: PlanHeader | None = None, *, check: bool = False) -> Planned:
    """A plan on disk: that of a packed set, after any rebalance, or of a file.

    Args:
        path: the folder of a plan or packed set, or the file of a plan.
        header: what the plan says beside its arrays, where that is known already.
        check: prove the arrays when they are read, see `read_plan`.

    Raises:
        InputError: there is no plan.
        FormatError: it is damaged, or of another version.
    """
    file = path / PLAN_NAME if path.is_dir() else path
    header = header or read_plan_header(file)
    manifest = read_manifest(file.parent) if (file.parent / MANIFEST_NAME).exists() else None
    is_rebalanced = manifest is not None and bool(manifest.history)
    metrics = manifest.metrics if manifest and is_rebalanced else header.metrics
    return Planned(
        config=header.config,
        counts=header.counts,
        group_choice=header.group_choice,
        header=header,
        manifest=manifest,
        load=partial(plan_in_force, file.parent) if is_rebalanced else lambda: read_plan(file, check=check)[0],
        measure=lambda planned: metrics,
    )
