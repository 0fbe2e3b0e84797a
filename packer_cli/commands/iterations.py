"""The iterations of a plan: their micro-batches, GPUs and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from packer_cli.errors import ConfigError
from packer_cli.plan.core.csr import pack_tokens_and_work, plan_tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER, Int32Array, Int64Array, Plan
from packer_cli.sizes import counted
from packer_cli.tables.table import Table, cell, tables_html

if TYPE_CHECKING:
    import pyarrow as pa

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

    def __init__(self, plan: Plan, epoch: int) -> None:
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
            attention=None if plan.pieces.attention is None else plan.pieces.attention[pieces],
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
