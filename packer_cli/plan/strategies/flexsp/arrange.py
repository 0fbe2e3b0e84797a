"""From mixed iterations to what the scheduler takes: packs by group, and iterations of replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import Iterations, round_up_rows
from packer_cli.plan.core.segments import align_up, aligned_lengths
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import FILLER, Int32Array, Int64Array, Packs, Pieces, Plan, Schedule
from packer_cli.plan.core.work import pack_tokens_and_work
from packer_cli.plan.strategies.assemble import assemble, pack_sizes, scheduled, sizes_of_plan
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts, degree_costs
from packer_cli.plan.strategies.flexsp.data_set import plan_data_set
from packer_cli.plan.strategies.flexsp.iterations import MixedIterations, form_iterations
from packer_cli.plan.strategies.flexsp.packing import MixedPacks
from packer_cli.plan.strategies.group_packs import GroupPacks
from packer_cli.plan.strategies.protocol import PlanRequest


def plan_mixed(pieces: Pieces, request: PlanRequest) -> Plan:
    """Pack all pieces for the groups, whose degrees differ, and divide the GPUs of each iteration.

    The lowest degree divides the others and the number of GPUs. Price: see `data_set`.
    """
    costs, lengths = degree_costs(request), align_up(pieces.length, request.groups[0].align)
    seed = int(rng_state(request.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, request.num_gpus, seed=seed, window=request.balance.window or 0)
    by_group, iterations = arrange(found, lengths, costs, request.groups, request.num_gpus)
    return assemble(pieces, by_group, iterations, pack_sizes(by_group, pieces.length, request), request, costs)


def rest_of_mixed(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule packs (int64[r], their numbers) that are there, in iterations formed anew. O(m + p log p)."""
    costs = degree_costs(request)
    lengths = aligned_lengths(plan.pieces, plan.packs, plan.groups)
    iterations = deal_mixed(plan.packs, chosen, lengths, costs, plan.groups, request.num_gpus)
    return scheduled(iterations, sizes_of_plan(plan, request), plan.packs.group, request, epoch, costs)


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
