"""`plan`: a plan, and the facts about it: made in memory from lengths, or read from a packed set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np

from packer_cli.commands.arguments import Lengths, StrPath, is_paths, one_path, takes
from packer_cli.commands.inputs import parts_of_epoch, sources_of
from packer_cli.commands.output_folder import config_of_plan
from packer_cli.commands.plan import plan_cut, resolve_for, run_plan
from packer_cli.commands.rebalance import plan_in_force
from packer_cli.commands.samples import find, require_samples
from packer_cli.config import BoundConfig, PlanConfig, PlannedConfig, StorePlanConfig, validate
from packer_cli.config.resolve import build, require_plan
from packer_cli.errors import ConfigError
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import GroupChoice, PlanMetrics, SampleCounts
from packer_cli.format.tokens import InputInfo
from packer_cli.format.versions import plan_file, set_at
from packer_cli.plan.core import types
from packer_cli.plan.core.csr import pack_tokens_and_work, plan_tokens_and_work
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER, Int32Array, Int64Array
from packer_cli.plan.figures import (
    Baseline,
    baseline_of,
    length_stats,
    measure_masks,
    padded_baseline,
    plan_stats,
    prove_by_program,
)
from packer_cli.plan.figures import Stats as FoundStats
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.remote.path import as_path
from packer_cli.shards.manifest import manifest_of_plan
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.sizes import counted
from packer_cli.tables.stats import stats_tables
from packer_cli.tables.table import Result, Table, cell, tables_html

if TYPE_CHECKING:
    import pyarrow as pa

    from packer_cli.commands.option_types import BoundOptions, StorePlanOptions


class Stats(Result, FoundStats):
    """The figures of lengths and of a plan."""

    def _tables(self) -> Iterable[Table]:
        return stats_tables(self)


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
    _sources: Callable[[], tuple[InputInfo, ...] | None] = lambda: None
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
    def sources(self) -> tuple[InputInfo, ...] | None:
        """The inputs of a plan that was read, and what was read of each; None where they are not known."""
        return self._sources()

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
            sources=self.sources,
            inputs=parts_of_epoch(self.sources, self.counts),
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


@takes(StorePlanConfig)
def plan(lengths: Lengths, *, output: StrPath | None = None, **options: Unpack[StorePlanOptions]) -> Plan:
    """Plan samples: groups, packs, iterations and steps. The options are those of `hbpack plan`.

    Only lengths are needed, so a plan takes seconds, and you can look at it before a token is written. The result is
    the same as that of the command. A million lengths take about as long as by the command: the plan is made in this
    process, by the same code. Where the path holds a plan, options that you leave out are those of that plan.

    Args:
        lengths: tokens of each sample, as a numpy array, a list, or a column of pyarrow, pandas or polars (int[n]);
            or the path or URL of a file of lengths, of a token store, or of a packed set that keeps its tokens.
        output: folder for the plan of a token store, as `hbpack plan --output` writes it. By default, nothing is
            written.
        options: see "Options of a plan"; `groups` and `gpus` are required by most strategies.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    if output is not None:
        if not is_paths(lengths):
            raise ConfigError("output: a plan is written beside the tokens of a token store, which lengths lack")
        run_plan(options, one_path(lengths, "plan"), as_path(output))
        return read_planned(as_path(output))
    found = find(lengths, "plan")
    samples, recorded = require_samples(found), config_of_plan(found.path) if found.kind == "folder" else None
    for name, what in (("validation", "set aside"), ("dedup", "compared")):
        if options.get(name) not in (None, "off"):
            raise ConfigError(
                f"{name}: samples are {what} by their tokens, when the plan of a token store is written; give output, "
                f"or leave {name} out"
            )
    config, given = recorded.with_options(options) if recorded else (validate(StorePlanConfig, options), None)
    return plan_in_memory(samples, config, given)


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

    Raises InputError where there is no plan, and FormatError where it is damaged, or of another version.
    """
    file = plan_file(path)
    header, home = read_plan_header(file), set_at(file.parent)
    manifest = manifest_of_plan(home, header.fingerprint)
    file = home / PLAN_NAME if manifest else file  # A version's stays when the set is planned again.
    dealt = manifest if manifest and manifest.history else None
    return Plan(
        config=header.config,
        counts=header.counts,
        group_choice=header.group_choice,
        header=header,
        manifest=manifest,
        _sources=partial(sources_of, header, manifest, file.parent),
        _load=partial(plan_in_force, home) if dealt else lambda: read_plan(file, check=check)[0],
        _measure=lambda planned: dealt.metrics if dealt else header.metrics,
    )


_SHOWN = 10
"""Rows of a notebook's table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """One pack on one replica: GPUs that share its row."""

    pack: int | None
    """Number of the pack in the plan; None for a filler, which has no samples and no loss."""
    group: Group
    """The pack's group: capacity, degrees of parallelism, checkpointed layers."""
    gpus: range
    """The plan's numbers of the GPUs."""
    row_length: int
    """Tokens to which a trainer with fixed shapes pads the row."""
    samples: Int32Array
    """int32[n]: number of each sample among the lengths; a sample that was cut is in several packs."""
    starts: Int32Array
    """int32[n]: first token of each piece in its sample; 0 unless the sample was cut."""
    lengths: Int32Array
    """int32[n]: tokens of each piece; tokens that branches of an item share are counted once."""
    attention: Int64Array | None = None
    """int64[n]: attention work of each item; None: samples are flat."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the samples, without padding."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def attention_work(self) -> int:
        """Sum of the squared lengths, which HBP evens out; of items, their own work."""
        if self.attention is not None:
            return int(self.attention.sum())
        return int(np.square(self.lengths, dtype=np.int64).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class Iteration:
    """Micro-batches that run between two points where all GPUs meet."""

    number: int
    """Place of the iteration in the epoch."""
    step: int
    """The optimizer step that the iteration belongs to."""
    micro_batches: tuple[MicroBatch, ...]
    """Micro-batches by first GPU; those of a replica in the order in which it runs them."""


class Iterations(Sequence[Iteration]):
    """The iterations of an epoch, in order. An item is made when you ask for it."""

    def __init__(self, plan: types.Plan, epoch: int) -> None:
        """Prepare the iterations of an epoch; use `Plan.iterations` instead of this."""
        if not 0 <= epoch < len(plan.epochs):
            has = counted(len(plan.epochs), "epoch")
            raise ConfigError(f"epoch {epoch} is not planned; the plan has {has}, from 0 on: plan more with --epochs")
        self._plan = plan
        self._schedule = plan.epochs[epoch]

    def __len__(self) -> int:
        return self._schedule.num_iterations

    @overload
    def __getitem__(self, index: int) -> Iteration: ...

    @overload
    def __getitem__(self, index: slice) -> list[Iteration]: ...

    def __getitem__(self, index: int | slice) -> Iteration | list[Iteration]:
        """Make one iteration, or a list of those of a slice."""
        if isinstance(index, slice):
            return [self._iteration(number) for number in range(len(self))[index]]
        return self._iteration(range(len(self))[index])

    def table(self) -> pa.Table:
        """Make a pyarrow table of all micro-batches, a row each; `.to_pandas()` and polars take the table as it is.

        Columns: `iteration`, `step`, `group` (its number in the plan), `first_gpu`, `num_gpus`, `pack` (null: a
        filler), `row_length`, `num_samples`, `num_tokens`, and `attention_work` with the padding that aligns samples.
        Price: O(samples).
        """
        import pyarrow as pa

        return pa.table(self._columns(slice(None)))

    def _columns(self, which: slice) -> dict[str, pa.Array]:
        import pyarrow as pa

        schedule, plan = self._schedule, self._plan
        pack = schedule.slot_pack[which]
        is_filler = pack == FILLER
        packs = plan.packs.offsets, plan.packs.pieces
        tokens, _ = pack_tokens_and_work(*packs, plan.pieces.length)
        _, work = plan_tokens_and_work(plan)
        of_pack = {"num_samples": np.diff(plan.packs.offsets), "num_tokens": tokens, "attention_work": work}
        iteration = schedule.slot_iteration[which]
        columns = {
            "iteration": iteration,
            "step": schedule.iteration_step[iteration],
            "group": schedule.slot_group[which],
            "first_gpu": schedule.slot_first_gpu[which],
            "num_gpus": plan.slot_gpus(schedule)[which].astype(np.int32),
            "pack": pa.array(pack, mask=is_filler),
            "row_length": schedule.slot_row_length[which],
            **{name: np.append(values, 0)[pack] for name, values in of_pack.items()},  # FILLER is -1, the zero.
        }
        return {name: pa.array(values) for name, values in columns.items()}

    def _iteration(self, number: int) -> Iteration:
        schedule = self._schedule
        first, stop = np.searchsorted(schedule.slot_iteration, [number, number + 1])
        return Iteration(
            number=number,
            step=int(schedule.iteration_step[number]),
            micro_batches=tuple(self._micro_batch(slot) for slot in range(first, stop)),
        )

    def _micro_batch(self, slot: int) -> MicroBatch:
        plan, schedule = self._plan, self._schedule
        pack, group = int(schedule.slot_pack[slot]), plan.groups[schedule.slot_group[slot]]
        first = int(schedule.slot_first_gpu[slot])
        pieces = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]  # FILLER is -1: none.
        samples = plan.pieces.samples
        return MicroBatch(
            pack=None if pack == FILLER else pack,
            group=group,
            gpus=range(first, first + group.num_gpus),
            row_length=int(schedule.slot_row_length[slot]),
            samples=pieces if samples is None else samples[pieces],
            starts=plan.pieces.start[pieces],
            lengths=plan.pieces.length[pieces],
            attention=None if plan.pieces.work is None else plan.pieces.work[pieces],
        )

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'iteration')}, {counted(self._schedule.num_steps, 'step')}>"

    def _repr_html_(self) -> str:
        columns = {name: values.to_pylist() for name, values in self._columns(slice(_SHOWN)).items()}
        more = len(self._schedule.slot_pack) - _SHOWN
        table = Table(
            title=f"Micro-batches of {counted(len(self), 'iteration')}",
            header=tuple(columns),
            rows=tuple(
                tuple(cell(value, "{:,}".format, "-") for value in row) for row in zip(*columns.values(), strict=True)
            ),
            notes=(f"and {more:,} more",) if more > 0 else (),
        )
        return tables_html([table])
