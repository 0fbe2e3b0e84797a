"""Numbers packs as the first epoch reads them, so that reading a shard is sequential."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer_cli.plan.core.csr import copy_packs
from packer_cli.plan.core.types import FILLER, Packs, Schedule
from packer_cli.plan.strategies.group_packs import GroupPacks


def number_as_used(by_group: list[GroupPacks], schedules: Sequence[Schedule]) -> tuple[Packs, list[Schedule]]:
    """The packs of all groups, one group after another, and the schedules with their new numbers. O(m).

    Args:
        by_group: emptied, so that no group's packs are held longer than needed.
        schedules: of each epoch; their slots number the packs through the groups.
    """
    slot_pack = schedules[0].slot_pack
    sizes = [len(part.offsets) - 1 for part in by_group]
    group = np.repeat(np.arange(len(by_group), dtype=np.int16), sizes)
    used = slot_pack[slot_pack != FILLER]
    order = used[np.argsort(group[used], kind="stable")]
    offsets = np.zeros(len(group) + 1, dtype=np.int64)
    pieces = np.empty(sum(len(part.pieces) for part in by_group), dtype=np.int32)
    first = 0
    for size in sizes:
        part = by_group.pop(0)
        copy_packs(part.offsets, part.pieces, order[first : first + size] - first, offsets, pieces, first)
        first += size
    number = np.empty(len(group) + 1, dtype=np.int32)
    number[order] = np.arange(len(group))
    number[FILLER] = FILLER  # -1, the last one.
    packs = Packs(offsets=offsets, pieces=pieces, group=group, cp_sharding=np.zeros(len(group), dtype=np.int8))
    return packs, [replace(schedule, slot_pack=number[schedule.slot_pack]) for schedule in schedules]
