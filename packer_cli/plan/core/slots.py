"""What the slots of a schedule hold: the tokens and the work of which all figures are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int16Array, Int32Array, Int64Array, Plan
from packer_cli.plan.core.work import pack_tokens_and_work, plan_tokens_and_work


@dataclass(frozen=True, kw_only=True)
class SlotContents:
    """k slots, sorted by iteration and first GPU; r replicas, which have one slot or more in an iteration."""

    pack: Int32Array
    """int32[k]: pack, or FILLER."""
    group: Int16Array
    """int16[k]"""
    iteration: Int64Array
    """int64[k]"""
    gpus: Int64Array
    """int64[k]: GPUs of the replica."""
    row_length: Int32Array
    """int32[k]"""
    tokens: Int64Array
    """int64[k]: with the padding that aligns samples or, in a padded batch, that GPUs compute."""
    real_tokens: Int64Array
    """int64[k]: without it."""
    work: NDArray[np.float64]
    """float64[k]: attention work, see `plan.core.work`."""
    first: Int64Array
    """int64[r]: the first slot of each replica."""

    def of_replicas(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sums (float64[r]) of values of the slots (float64[k]) over each replica's."""
        return np.add.reduceat(values, self.first) if len(self.first) < len(values) else values

    @property
    def replicas(self) -> tuple[Int64Array, Int64Array]:
        """Iteration and GPUs of each replica (int64[r] both)."""
        return self.iteration[self.first], self.gpus[self.first]


def slot_contents(plan: Plan, group: int | None = None, epoch: int = 0) -> SlotContents:
    """The slots of one group, or all of them. Price: O(pieces + slots)."""
    schedule = plan.epochs[epoch]
    chosen = np.ones(len(schedule.slot_pack), dtype=np.bool_) if group is None else schedule.slot_group == group
    pack = schedule.slot_pack[chosen]
    pack_tokens, pack_work = plan_tokens_and_work(plan)
    tokens = real_tokens = np.append(pack_tokens, 0)[pack]  # FILLER is -1, the appended zero
    if plan.is_padded or any(each.align > 1 for each in plan.groups):
        pack_tokens, _ = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
        real_tokens = np.append(pack_tokens, 0)[pack]
    return SlotContents(
        pack=pack,
        group=schedule.slot_group[chosen],
        iteration=schedule.slot_iteration[chosen],
        gpus=plan.slot_gpus(schedule)[chosen],
        row_length=schedule.slot_row_length[chosen],
        tokens=tokens,
        real_tokens=real_tokens,
        work=np.append(pack_work, 0)[pack].astype(np.float64),
        first=np.flatnonzero(schedule.begins_replica[chosen]),
    )
