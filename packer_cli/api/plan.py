"""`plan`: which samples share a pack, and which packs run together, from their lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import Lengths, StrPath, is_paths, one_path, samples_of, takes
from packer_cli.config import PlanConfig, StorePlanConfig, validate
from packer_cli.config.models import BoundConfig
from packer_cli.errors import ConfigError
from packer_cli.remote.names import as_path
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.commands.iterations import Iterations
    from packer_cli.commands.options import BoundOptions, StorePlanOptions
    from packer_cli.commands.planned import Planned
    from packer_cli.commands.results import Stats
    from packer_cli.format.metrics import GroupChoice, PlanMetrics, SampleCounts
    from packer_cli.plan.core import types
    from packer_cli.plan.core.groups import Group


@takes(StorePlanConfig)
def plan(lengths: Lengths, *, output: StrPath | None = None, **options: Unpack[StorePlanOptions]) -> Plan:
    """Plan samples: groups, packs, iterations and steps. The options are those of `hbpack plan`.

    Only lengths are needed, so a plan takes seconds, and you can look at it before a token is written. The result is
    the same as that of the command. A million lengths take about as long as there: the plan is made in this process,
    by the same code.

    Args:
        lengths: tokens of each sample, as a numpy array, a list, or a column of pyarrow, pandas or polars (int[n]);
            or the path or URL of a file of lengths, of a token store, or of a packed set that keeps its tokens.
        output: folder for the plan of a token store, as `hbpack plan --output` writes it. By default, nothing is
            written.
        options: see "Options of a plan"; `groups` and `gpus` are required by most strategies.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    config = validate(StorePlanConfig, options)
    if output is None:
        if config.validation is not None:
            raise ConfigError(
                "validation: samples are set aside by their tokens, when the plan of a token store is written; give "
                "output, or leave validation out"
            )
        from packer_cli.commands.planned import plan_in_memory
        from packer_cli.commands.samples import require_samples

        samples = require_samples(one_path(lengths, "plan")) if is_paths(lengths) else samples_of(lengths)
        return Plan(plan_in_memory(samples, config))
    if not is_paths(lengths):
        raise ConfigError("output: a plan is written beside the tokens of a token store, which lengths lack")
    from packer_cli.commands.plan import run_plan
    from packer_cli.commands.planned import read_planned

    folder = as_path(output)
    return Plan(read_planned(folder, run_plan(config, one_path(lengths, "plan"), folder)))


class Plan:
    """Which samples share a pack, which packs run together, on which GPUs and in which order; made by `plan`."""

    def __init__(self, planned: Planned) -> None:
        """Use `plan`, or `PackedSet.plan`."""
        self._planned = planned

    @property
    def config(self) -> PlanConfig:
        """The options that decided it, with groups and costs as numbers."""
        return self._planned.config

    @property
    def groups(self) -> tuple[Group, ...]:
        """The length groups, by rising capacity."""
        return self._planned.config.groups

    @property
    def group_choice(self) -> GroupChoice | None:
        """How `groups="auto"` chose; None if you named the groups."""
        return self._planned.group_choice

    @property
    def counts(self) -> SampleCounts:
        """What became of the samples."""
        return self._planned.counts

    @property
    def metrics(self) -> PlanMetrics:
        """Figures of the plan and its groups, beside the paper's baseline; see docs/metrics.md."""
        return self._planned.metrics

    @property
    def arrays(self) -> types.Plan:
        """The plan as flat numpy arrays: pieces, packs, and a schedule an epoch."""
        return self._planned.arrays

    @takes(BoundConfig)
    def stats(self, **options: Unpack[BoundOptions]) -> Stats:
        """The figures of `hbpack stats`: balance, padding, communication, lengths, and what the mask leaves out.

        Args:
            options: `bound`, see `stats`.
        """
        from packer_cli.commands.results import Stats
        from packer_cli.commands.stats import plan_figures_of

        found = plan_figures_of(self._planned, by_program=validate(BoundConfig, options).bound == "lp")
        return Stats(**vars(found))

    def iterations(self, epoch: int = 0) -> Iterations:
        """What runs in each iteration of an epoch: its micro-batches, their GPUs and their samples.

        Args:
            epoch: one of those that were planned (`epochs=`).

        Raises:
            HbpackError: there is no such epoch.
        """
        from packer_cli.commands.iterations import Iterations

        return Iterations(self.arrays, epoch)

    def __repr__(self) -> str:
        schedule, packs = self.arrays.epochs[0], self.arrays.packs
        return (
            f"<Plan of {counted(self.counts.samples, 'sample')}: {counted(len(packs), 'pack')}, "
            f"{counted(schedule.num_iterations, 'iteration')}, {counted(schedule.num_steps, 'step')} on "
            f"{counted(self.arrays.num_gpus, 'GPU')}; groups {','.join(map(str, self.groups))}>"
        )

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()
