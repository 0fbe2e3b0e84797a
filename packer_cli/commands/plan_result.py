"""A plan, and the facts about it: made in memory from lengths, or read from a packed set."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import takes
from packer_cli.commands.iterations import Iterations
from packer_cli.commands.plan_store import plan_cut, resolve_for
from packer_cli.commands.rebalance import plan_in_force
from packer_cli.commands.results import Stats
from packer_cli.config import BoundConfig, PlanConfig, PlannedConfig, validate
from packer_cli.config.resolve import build, require_plan
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import GroupChoice, PlanMetrics, SampleCounts
from packer_cli.plan.core import types
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.figures import (
    Baseline,
    baseline_of,
    length_stats,
    measure_masks,
    padded_baseline,
    plan_stats,
    prove_by_program,
)
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.commands.option_types import BoundOptions


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Plan:
    """Plan of the samples that share a pack, the packs that run together, and their GPUs and order; made by `plan`.

    Its arrays are read, and its figures are computed, when they are first asked for.
    """

    config: PlannedConfig
    """The options that decided the plan, with groups and costs as numbers."""
    counts: SampleCounts
    """Samples by their outcome."""
    group_choice: GroupChoice | None
    """The choice of `groups="auto"`; None if you named the groups."""
    samples: Samples | None = None
    """The samples that the plan was made from; None for a plan that was read."""
    header: PlanHeader | None = None
    """The header of the file of a plan that was read: all but its arrays."""
    manifest: Manifest | None = None
    """Manifest of the packed set that the plan was read from."""
    _load: Callable[[], types.Plan]
    _measure: Callable[[Plan], PlanMetrics]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The length groups, by rising capacity, which the slots of `arrays` index."""
        return self.arrays.groups

    @cached_property
    def arrays(self) -> types.Plan:
        """The plan as flat numpy arrays: pieces, packs, and a schedule an epoch."""
        return self._load()

    @cached_property
    def metrics(self) -> PlanMetrics:
        """Figures of the plan and its groups, beside the paper's baseline; see docs/metrics.md."""
        return self._measure(self)

    @cached_property
    def baseline(self) -> Baseline:
        """The baseline that the plan is compared with."""
        return baseline_of(self.arrays, self.request)

    @cached_property
    def padded(self) -> types.Plan | None:
        """The same samples in padded batches; None where rows are more than samples one after another."""
        return padded_baseline(self.arrays, self.request)

    @cached_property
    def request(self) -> PlanRequest:
        """The request that the strategy planned from, on as many GPUs as the plan has now."""
        return replace(build(self.config).request, num_gpus=self.arrays.num_gpus)

    @takes(BoundConfig)
    def stats(self, **options: Unpack[BoundOptions]) -> Stats:
        """Compute the figures of `hbpack stats`: balance, padding, communication, lengths, and sparsity of the mask.

        Args:
            options: `bound`, see `stats`.
        """
        metrics = self.metrics
        if validate(BoundConfig, options).bound == "lp":
            metrics = prove_by_program(metrics, self.arrays)
        return Stats(
            lengths=None if self.samples is None else length_stats(self.samples.lengths),
            group_choice=self.group_choice,
            strategy=self.config.strategy,
            packing=self.config.used_packing,
            counts=self.counts,
            **vars(metrics),
            masks=measure_masks(self.arrays, metrics),
        )

    def iterations(self, epoch: int = 0) -> Iterations:
        """List the iterations of an epoch: their micro-batches, GPUs and samples.

        Args:
            epoch: one of the epochs that were planned (`epochs=`).

        Raises:
            HbpackError: there is no such epoch.
        """
        return Iterations(self.arrays, epoch)

    def __repr__(self) -> str:
        schedule, packs = self.arrays.epochs[0], self.arrays.packs
        return (
            f"<Plan of {counted(self.counts.samples, self.counts.unit)}: {counted(len(packs), 'pack')}, "
            f"{counted(schedule.num_iterations, 'iteration')}, {counted(schedule.num_steps, 'step')} on "
            f"{counted(self.arrays.num_gpus, 'GPU')}; groups {','.join(map(str, self.groups))}>"
        )

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()


def plan_in_memory(samples: Samples, config: PlanConfig, given: Collection[str] | None = None) -> Plan:
    """Plan samples of which only the lengths are known; the errors are those of `plan_samples`.

    Args:
        given: see `require_plan`.

    Raises:
        ConfigError: the options do not fit each other or the samples, or ask for a plan that is only compared.
    """
    require_plan(config, given)
    resolved, choice = resolve_for(config, samples, given or ())
    plan, cut = plan_cut(samples, resolved)
    return Plan(
        config=resolved.config,
        counts=cut.counts(plan.pieces),
        group_choice=choice,
        samples=samples,
        _load=lambda: plan,
        _measure=lambda planned: plan_stats(planned.arrays, planned.request, samples.sources, planned.baseline),
    )


def read_planned(path: Path, *, check: bool = False) -> Plan:
    """Read a plan on disk: the plan of a packed set, after any rebalance, or of a file.

    Args:
        path: the folder of a plan or packed set, or the file of a plan.
        check: whether to prove the arrays when they are read, see `read_plan`.

    Raises:
        InputError: there is no plan.
        FormatError: the plan is damaged, or of another version.
    """
    file = path / PLAN_NAME if path.is_dir() else path
    header = read_plan_header(file)
    manifest = read_manifest(file.parent) if (file.parent / MANIFEST_NAME).exists() else None
    is_rebalanced = manifest is not None and bool(manifest.history)
    metrics = manifest.metrics if manifest and is_rebalanced else header.metrics
    return Plan(
        config=header.config,
        counts=header.counts,
        group_choice=header.group_choice,
        header=header,
        manifest=manifest,
        _load=partial(plan_in_force, file.parent) if is_rebalanced else lambda: read_plan(file, check=check)[0],
        _measure=lambda planned: metrics,
    )
