"""From mixed iterations to what the scheduler takes: packs by group, and iterations of replicas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.arrange import GroupPacks
from packer_cli.plan.packing.csr import select_packs
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.schedule import Iterations, round_up_rows
from packer_cli.plan.strategies.flexsp.data_set import plan_data_set
from packer_cli.plan.streams import Stream, rng_state
from packer_cli.plan.types import FILLER, Int32Array
from packer_cli.plan.work import pack_tokens_and_work


def arrange_mixed(lengths: Int32Array, rules: PlanRules) -> tuple[list[GroupPacks], Iterations]:
    """Pack all pieces (int32[m], lengths) for the groups, whose degrees differ, and divide the GPUs of each iteration.

    Packs are numbered through the groups. The GPUs that an iteration leaves get fillers of the lowest degree.

    Args:
        rules: with `replica_costs`; each degree is a multiple of the one before.

    Price: see `data_set`.
    """
    costs = rules.replica_costs
    assert costs is not None
    seed = int(rng_state(rules.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, rules.num_gpus, seed=seed, window=rules.balance.window or 0)
    by_group = []
    number = np.empty(len(found.kinds), dtype=np.int64)
    first = 0
    for g in range(len(rules.groups)):
        own = np.flatnonzero(found.kinds == g)
        number[own] = first + np.arange(len(own))
        first += len(own)
        offsets, pieces = select_packs(found.offsets, found.samples, own)
        by_group.append(GroupPacks(offsets=offsets, pieces=pieces, num_whole=len(own), is_spread=False))
    tokens, _ = pack_tokens_and_work(found.offsets, found.samples, lengths)
    degree = costs.degrees[found.kinds]
    busy = np.add.reduceat(degree, found.iterations[:-1]) if len(degree) else degree
    num_fillers = (rules.num_gpus - busy) // costs.degrees[0]
    offsets = found.iterations + np.concatenate([[0], np.cumsum(num_fillers)])
    is_pack = np.ones(offsets[-1], dtype=np.bool_)
    is_pack[np.repeat(offsets[1:] - num_fillers, num_fillers) + _counted(num_fillers)] = False
    slot_pack, slot_group = np.full(len(is_pack), FILLER), np.zeros(len(is_pack), dtype=np.int64)
    slot_pack[is_pack], slot_group[is_pack] = number, found.kinds
    slot_tokens = np.zeros(len(is_pack), dtype=np.int64)
    slot_tokens[is_pack] = tokens
    slot_degree = costs.degrees[slot_group]
    ends = np.cumsum(slot_degree)
    iteration = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    longest = np.zeros((len(offsets) - 1) * len(rules.groups), dtype=np.int64)
    of_group = iteration * len(rules.groups) + slot_group
    np.maximum.at(longest, of_group, slot_tokens)
    capacity = np.array([group.capacity for group in rules.groups], dtype=np.int64)
    return by_group, Iterations(
        offsets=offsets,
        slot_pack=slot_pack,
        slot_group=slot_group.astype(np.int16),
        slot_first_gpu=(ends - slot_degree - iteration * rules.num_gpus).astype(np.int32),
        slot_row_length=round_up_rows(longest[of_group], slot_degree, capacity[slot_group]).astype(np.int32),
    )


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 .. n-1 for each count n, one after another.

    >>> _counted(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
