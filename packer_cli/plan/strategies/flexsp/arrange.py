"""From mixed iterations to what the scheduler takes: packs by group, and iterations of replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer_cli.plan.arrange import GroupPacks
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import Iterations, round_up_rows
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import FILLER, Int32Array, Int64Array, Packs
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.flexsp.data_set import plan_data_set
from packer_cli.plan.strategies.flexsp.iterations import MixedIterations, form_iterations
from packer_cli.plan.strategies.flexsp.packing import MixedPacks


def arrange_mixed(lengths: Int32Array, costs: DegreeCosts, rules: PlanRules) -> tuple[list[GroupPacks], Iterations]:
    """Pack all pieces (int32[m], lengths) for the groups, whose degrees differ, and divide the GPUs of each iteration.

    Packs are numbered through the groups. Price: see `data_set`.

    Args:
        costs: of the groups; the lowest degree divides the others and `num_gpus`.
    """
    seed = int(rng_state(rules.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, rules.num_gpus, seed=seed, window=rules.balance.window or 0)
    return arrange(found, lengths, costs, rules.groups, rules.num_gpus)


def arrange(
    found: MixedIterations, lengths: Int32Array, costs: DegreeCosts, groups: Sequence[Group], num_gpus: int
) -> tuple[list[GroupPacks], Iterations]:
    """Packs by group, numbered through the groups, and the iterations on GPUs. O(m)."""
    by_group = []
    number = np.empty(len(found.kinds), dtype=np.int64)
    first = 0
    for g in range(len(costs)):
        own = np.flatnonzero(found.kinds == g)
        number[own] = first + np.arange(len(own))
        first += len(own)
        offsets, pieces = select_packs(found.offsets, found.samples, own)
        by_group.append(GroupPacks(offsets=offsets, pieces=pieces, num_whole=len(own), is_spread=False))
    tokens, _ = pack_tokens_and_work(found.offsets, found.samples, lengths)
    return by_group, _on_gpus(found.iterations, number, found.kinds, tokens, costs, groups, num_gpus)


def deal_mixed(
    packs: Packs,
    chosen: Int64Array,
    lengths: Int32Array,
    costs: DegreeCosts,
    groups: Sequence[Group],
    num_gpus: int,
) -> Iterations:
    """Iterations of packs that are there, of unlike degrees and near-equal predicted time. O(m + p log p).

    Args:
        chosen: int64[r], the numbers of the packs.
        lengths: int32[m], of the pieces.
    """
    offsets, pieces = select_packs(packs.offsets, packs.pieces, chosen)
    kinds = packs.group[chosen].astype(np.int64)
    found = form_iterations(MixedPacks(offsets, pieces, kinds), lengths, costs, num_gpus)
    tokens, _ = pack_tokens_and_work(found.offsets, found.samples, lengths)
    pack_of = np.empty(len(lengths), dtype=np.int64)
    pack_of[pieces] = np.repeat(chosen, np.diff(offsets))
    number = pack_of[found.samples[found.offsets[:-1]]]
    return _on_gpus(found.iterations, number, found.kinds, tokens, costs, groups, num_gpus)


def _on_gpus(
    iterations: Int64Array,
    number: Int64Array,
    kinds: Int64Array,
    tokens: Int64Array,
    costs: DegreeCosts,
    groups: Sequence[Group],
    num_gpus: int,
) -> Iterations:
    """Replicas from GPU 0 on, in the order of the packs; the GPUs that are left get fillers of the lowest degree.

    Args:
        iterations: int64[i+1]: iteration j runs packs `iterations[j] .. iterations[j+1] - 1`.
        number, kinds, tokens: int64[p], the number, the group and the tokens of each of these packs.
    """
    degree = costs.degrees[kinds]
    busy = np.add.reduceat(degree, iterations[:-1]) if len(degree) else degree
    num_fillers = (num_gpus - busy) // costs.degrees[0]
    offsets = iterations + np.concatenate([[0], np.cumsum(num_fillers)])
    iteration = np.repeat(np.arange(len(busy)), np.diff(offsets))
    is_pack = np.arange(offsets[-1]) < (offsets[1:] - num_fillers)[iteration]
    slot_pack = np.full(len(is_pack), FILLER, dtype=np.int32)
    slot_group, slot_tokens = np.zeros((2, len(is_pack)), dtype=np.int64)
    slot_pack[is_pack], slot_group[is_pack], slot_tokens[is_pack] = number, kinds, tokens
    slot_degree = costs.degrees[slot_group]
    of_group = iteration * len(costs) + slot_group
    longest = np.zeros(len(busy) * len(costs), dtype=np.int64)
    np.maximum.at(longest, of_group, slot_tokens)
    return Iterations(
        offsets=offsets,
        slot_pack=slot_pack,
        slot_group=slot_group.astype(np.int16),
        slot_first_gpu=(np.cumsum(slot_degree) - slot_degree - iteration * num_gpus).astype(np.int32),
        slot_row_length=round_up_rows(longest[of_group], groups, slot_group).astype(np.int32),
    )
