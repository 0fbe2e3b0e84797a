"""From mixed iterations to what the scheduler takes: packs by group, and iterations of replicas.

The whole data set is planned at once, which is our own. FlexSP (arXiv 2412.01523) plans each batch for itself
(`batches`). With all lengths at hand, every sample can run at the degree of its least GPU-seconds, and packs of equal
time still find each other: `packing`, then `iterations`. The waiting that remains is about one iteration in all. In a
small data set that is much; then lower limits on a pack's seconds are tried, which move the longest samples to higher
degrees.

Price: 0.5 s for a million samples. On mixes with a long tail the predicted time is within a thousandth of
`least_total_seconds` for a million samples, and within a few hundredths for some thirty iterations.

Iterations are as alike inside as HBP's sorted ones: packs with much attention work meet each other. `window` limits
that to a number of iterations at a time, whose samples are drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from packer_cli.plan.core.csr import count_lengths, pack_tokens_and_work, select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import Iterations, round_up_rows
from packer_cli.plan.core.segments import align_up, aligned_lengths
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Packs, Pieces, Plan, Schedule
from packer_cli.plan.strategies.assemble import GroupPacks, assemble, pack_sizes, scheduled, sizes_of_plan
from packer_cli.plan.strategies.flexsp.batches import BatchOptions, plan_batches
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts, degree_costs
from packer_cli.plan.strategies.flexsp.iterations import (
    MixedIterations,
    form_iterations,
    improve_iterations,
    iteration_seconds,
    joined,
)
from packer_cli.plan.strategies.flexsp.micro_batch import solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import MixedPacks, pack_by_degree
from packer_cli.plan.strategies.protocol import PlanRequest


def plan_mixed(pieces: Pieces, request: PlanRequest) -> Plan:
    """Pack all pieces for the groups, whose degrees differ, and divide the GPUs of each iteration.

    The lowest degree divides the others and the number of GPUs. Price: see the module.
    """
    costs, lengths = degree_costs(request), align_up(pieces.length, request.groups[0].align)
    seed = int(rng_state(request.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, request.num_gpus, seed=seed, window=request.balance.window or 0)
    by_group, iterations = arrange(found, lengths, costs, request.groups, request.num_gpus)
    return assemble(pieces, by_group, iterations, pack_sizes(by_group, pieces.length, request), request, costs)


def plan_in_batches(pieces: Pieces, request: PlanRequest, *, one_degree: bool = False) -> Plan:
    """Plan the pieces batch by batch, in the order of a seeded stream; see `batches`.

    Args:
        one_degree: BatchAda, which solves its micro-batches by search.
    """
    costs, options = degree_costs(request), request.packing_options
    tokens, num_gpus = request.steps.global_tokens, request.num_gpus
    assert tokens is not None
    order = shuffled(len(pieces), rng_state(request.seed, Stream.ARRIVAL))
    lengths = align_up(pieces.length, request.groups[0].align)
    arrived = lengths[order]
    trials, solve = BatchOptions.trials, solve_micro_batch
    if isinstance(options, BatchOptions):
        trials, solve = options.trials, partial(request.algorithm.pack, options=options)
    found, batch = plan_batches(arrived, costs, num_gpus, tokens, solve=solve, trials=trials, one_degree=one_degree)
    found = found._replace(samples=order[found.samples])
    by_group, iterations = arrange(found, lengths, costs, request.groups, num_gpus)
    sizes = pack_sizes(by_group, pieces.length, request)
    return assemble(pieces, by_group, replace(iterations, step=batch), sizes, request, costs)


def rest_of_mixed(
    plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int, *, keeps_steps: bool = False
) -> Schedule:
    """Schedule packs (int64[r], their numbers) that are there, in iterations formed anew. O(m + p log p).

    Args:
        keeps_steps: packs of one step of the plan's first epoch stay together.
    """
    costs = degree_costs(request)
    lengths = aligned_lengths(plan.pieces, plan.packs, plan.groups)
    step = plan.epochs[0].step_of_packs(len(plan.packs))[chosen] if keeps_steps else None
    iterations = deal_mixed(plan.packs, chosen, step, lengths, costs, plan.groups, request.num_gpus)
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
    step: Int64Array | None,
    lengths: Int32Array,
    costs: DegreeCosts,
    groups: Sequence[Group],
    num_gpus: int,
) -> Iterations:
    """Iterations of packs that are there, of unlike degrees and near-equal predicted time. O(m + p log p).

    Args:
        chosen: int64[r], the numbers of the packs.
        step: int64[r], where packs of unlike steps must not meet.
        lengths: int32[m], of the pieces.
    """
    parts = [chosen]
    if step is not None:
        order = np.argsort(step, kind="stable")
        parts = np.split(chosen[order], np.flatnonzero(np.diff(step[order])) + 1)
    formed = []
    for part in parts:
        offsets, pieces = select_packs(packs.offsets, packs.pieces, part)
        own = MixedPacks(offsets, pieces, packs.group[part].astype(np.int64))
        formed.append(form_iterations(own, lengths, costs, num_gpus))
    found = joined(formed)
    pack_of = np.empty(len(lengths), dtype=np.int64)
    pack_of[packs.pieces] = np.repeat(np.arange(len(packs)), np.diff(packs.offsets))
    number = pack_of[found.samples[found.offsets[:-1]]]
    tokens, _ = pack_tokens_and_work(found.offsets, found.samples, lengths)
    iterations = _on_gpus(found.iterations, number, found.kinds, tokens, costs, groups, num_gpus)
    if step is None:
        return iterations
    sizes = [len(each.iterations) - 1 for each in formed]
    return replace(iterations, step=np.repeat(np.arange(len(formed)), sizes))


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


_LIMITS = (0.95, 0.88, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Limits on a pack's seconds to try, as shares of the slowest pack's."""
_GOOD = 0.005
"""No limits are tried if the total is within this share of the bound."""


def plan_data_set(
    lengths: Int32Array, costs: DegreeCosts, num_gpus: int, *, seed: int = 0, window: int = 0
) -> MixedIterations:
    """Plan all samples (int32[n], none longer than every capacity): each ends up in one pack, and no pack is empty.

    Degrees of an iteration add up to at most `num_gpus`; GPUs beyond them are idle, in few iterations. The slowest
    iteration of a window comes first: shuffle them afterwards. Equal inputs give equal plans.

    Args:
        window: about so many iterations share a random part of the samples; 0 for all. A lower number mixes lengths
            better over the run and costs time.
    """
    costs = costs.up_to(num_gpus)
    assert lengths.max(initial=0) <= costs.capacity[-1]
    num_windows = 1
    if window:
        full = num_gpus // costs.degrees * costs.capacity
        num_windows = max(1, round(int(lengths.sum(dtype=np.int64)) / (window * int(full.max()))))
    if num_windows == 1:
        return _plan(lengths, costs, num_gpus, seed)
    order = shuffled(len(lengths), rng_state(seed, Stream.BALANCE))
    parts = []
    for number, members in enumerate(np.array_split(order, num_windows)):
        part = _plan(lengths[members], costs, num_gpus, int(rng_state(seed, Stream.PACKING, number)[0]))
        parts.append(part._replace(samples=members[part.samples]))
    return joined(parts)


def least_total_seconds(lengths: Int32Array, costs: DegreeCosts, num_gpus: int) -> float:
    """No plan takes less: all GPUs are always busy, and samples run at their cheapest degrees in full packs. O(n)."""
    costs = costs.up_to(num_gpus)
    count = count_lengths(lengths)
    length = np.flatnonzero(count)
    return float(count[length] @ costs.gpu_seconds(length)[1]) / num_gpus


def _plan(lengths: Int32Array, costs: DegreeCosts, num_gpus: int, seed: int) -> MixedIterations:
    best, seconds = _plan_within(lengths, costs, num_gpus, seed, np.inf)
    total = seconds.sum()
    if total > least_total_seconds(lengths, costs, num_gpus) * (1 + _GOOD):
        for share in _LIMITS:
            other, of_other = _plan_within(lengths, costs, num_gpus, seed, share * seconds.max())
            if of_other.sum() < total:
                best, total = other, of_other.sum()
    return best


def _plan_within(
    lengths: Int32Array, costs: DegreeCosts, num_gpus: int, seed: int, limit: float
) -> tuple[MixedIterations, Float64Array]:
    formed = form_iterations(pack_by_degree(lengths, costs, seed, limit), lengths, costs, num_gpus)
    found = improve_iterations(formed, lengths, costs, num_gpus)
    return found, iteration_seconds(found, lengths, costs)
