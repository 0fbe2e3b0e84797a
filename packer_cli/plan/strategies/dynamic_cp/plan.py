"""A whole data set: its samples arrive in steps, in random order, and each step is planned for itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import group_by_pack, select_packs
from packer_cli.plan.core.schedule import Iterations, round_up_rows
from packer_cli.plan.core.segments import align_up
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.strategies.assemble import (
    GroupPacks,
    PackSizes,
    assemble,
    pack_sizes,
    scheduled,
    sizes_of_plan,
)
from packer_cli.plan.strategies.dynamic_cp.degrees import pack_by_need
from packer_cli.plan.strategies.dynamic_cp.fcp import cut_rounds
from packer_cli.plan.strategies.dynamic_cp.megatron import dynamic_rounds, packs_of_one_degree
from packer_cli.plan.strategies.dynamic_cp.rounds import Rounds, form_rounds
from packer_cli.plan.strategies.protocol import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a step is planned for: k degrees on equal ranks."""

    degrees: Int64Array
    """int64[k], rising."""
    capacity: Int64Array
    """int64[k]: most tokens of a pack."""
    num_ranks: int
    costs: GroupCosts | None
    """None: work counts, in place of seconds."""
    is_one: bool
    """Whether a replica runs one pack in a round."""

    @classmethod
    def of(cls, request: PlanRequest) -> Machine:
        """That of a request."""
        groups = request.groups
        degrees, capacity = np.array([(group.cp_size, group.capacity) for group in groups]).T
        costs = None
        if request.rates is not None:
            quadratic, linear, constant = np.array(request.rates).T
            costs = GroupCosts(quadratic=quadratic, linear=linear, constant=constant, capacity=capacity)
        num_ranks = request.num_gpus // _gpus_of_rank(request)
        return cls(degrees=degrees.copy(), capacity=capacity.copy(), num_ranks=num_ranks, costs=costs,
                   is_one=request.lockstep is None)  # fmt: skip

    def seconds(self, kinds: Int64Array, work: Int64Array, tokens: Int64Array) -> Float64Array:
        """Of each pack (float64[p]) at these degrees."""
        if self.costs is None:
            return work / self.degrees[kinds]
        return self.costs.seconds(kinds, work, tokens)


def _gpus_of_rank(request: PlanRequest) -> int:
    """GPUs that divide the model."""
    return request.groups[0].num_gpus // request.groups[0].cp_size


StepPlan = tuple[Int64Array, Int64Array, Rounds]
"""The pack of each sample (int64[n]), the degree of each pack (int64[p], as an index), and when and where it runs."""
PlanStep = Callable[[Int64Array, Machine], StepPlan]
"""(lengths int64[n], in order of arrival; machine) -> the step"""


def fcp_step(lengths: Int64Array, machine: Machine) -> StepPlan:
    """FCP: samples share packs of their least degrees, and packs of like time a round."""
    falling = np.argsort(-lengths, kind="stable")
    pack_of, kinds = pack_by_need(lengths[falling], machine.capacity, shares_rows=True)
    all_kinds = np.arange(len(machine.degrees))[:, None]
    seconds = machine.seconds(all_kinds, *_sums(pack_of, lengths[falling], len(kinds)))
    kinds, found = cut_rounds(kinds, seconds, machine.degrees, machine.num_ranks)
    return _unsorted(pack_of, falling), kinds, found


def bytescale_step(lengths: Int64Array, machine: Machine) -> StepPlan:
    """ByteScale: a sample of several ranks is alone, the others share packs, and replicas that lag take more."""
    falling = np.argsort(-lengths, kind="stable")
    pack_of, kinds = pack_by_need(lengths[falling], machine.capacity, shares_rows=False)
    seconds = machine.seconds(kinds, *_sums(pack_of, lengths[falling], len(kinds)))
    found = form_rounds(machine.degrees, kinds, seconds, machine.num_ranks, is_one=machine.is_one)
    return _unsorted(pack_of, falling), kinds, found


def megatron_step(lengths: Int64Array, machine: Machine) -> StepPlan:
    """Megatron-LM's `default_dynamic_cp`."""
    falling = np.argsort(-lengths, kind="stable")
    pack_of, kinds, found = dynamic_rounds(lengths[falling], machine.degrees, machine.capacity, machine.num_ranks)
    return _unsorted(pack_of, falling), kinds, found


def dp_balanced_step(lengths: Int64Array, machine: Machine) -> StepPlan:
    """Megatron-LM's `dp_balanced`."""
    pack_of = packs_of_one_degree(lengths, int(machine.capacity[0]), machine.num_ranks // int(machine.degrees[0]))
    num_packs = int(pack_of.max(initial=-1)) + 1
    return pack_of, np.zeros(num_packs, dtype=np.int64), _in_order(num_packs, machine)


def _in_order(num_packs: int, machine: Machine) -> Rounds:
    """Rounds of packs of the only degree."""
    degree, number = int(machine.degrees[0]), np.arange(num_packs)
    replicas = machine.num_ranks // degree
    return Rounds(number // replicas, number % replicas * degree)


def _sums(pack_of: Int64Array, lengths: Int64Array, num_packs: int) -> tuple[Int64Array, Int64Array]:
    """Work and tokens (int64[p] each)."""
    work, tokens = np.zeros((2, num_packs), dtype=np.int64)
    np.add.at(work, pack_of, lengths * lengths)
    np.add.at(tokens, pack_of, lengths)
    return work, tokens


def _unsorted(of_sorted: Int64Array, order: Int64Array) -> Int64Array:
    found = np.empty_like(of_sorted)
    found[order] = of_sorted
    return found


def plan_by_steps(pieces: Pieces, request: PlanRequest, plan_step: PlanStep) -> Plan:
    """Plan the pieces step by step, in the order of a seeded stream. Later epochs run the same steps shuffled."""
    machine = Machine.of(request)
    order = shuffled(len(pieces), rng_state(request.seed, Stream.ARRIVAL))
    lengths = align_up(pieces.length, request.groups[0].align)[order].astype(np.int64)
    assert request.steps.global_tokens is not None
    bounds = _cut(lengths, request.steps.global_tokens)
    steps = [plan_step(lengths[a:b], machine) for a, b in itertools.pairwise(bounds)]
    sizes = [len(kinds) for _, kinds, _ in steps]
    before = np.concatenate([[0], np.cumsum(sizes)])
    pack_of = np.concatenate([own + first for (own, _, _), first in zip(steps, before, strict=False)])
    offsets, places = group_by_pack(pack_of, as_ids(np.arange(len(order))), int(before[-1]))
    kinds = np.concatenate([own for _, own, _ in steps])
    by_group, number = _by_group(offsets, order[places], kinds, len(machine.degrees))
    sizes_of = pack_sizes(by_group, pieces.length, request)
    step = np.repeat(np.arange(len(steps)), sizes)
    iterations = _on_gpus([found for *_, found in steps], number, kinds, step, sizes_of, request)
    return assemble(pieces, by_group, iterations, sizes_of, request)


def rest_of_steps(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """The same steps, in rounds formed anew of packs (int64[r], their numbers) that keep their degrees."""
    machine, sizes = Machine.of(request), sizes_of_plan(plan, request)
    step = plan.epochs[0].step_of_packs(len(plan.packs))[chosen]
    order = np.argsort(step, kind="stable")
    chosen, step = chosen[order], step[order]
    kinds = plan.packs.group[chosen].astype(np.int64)
    work = sizes.work[chosen] - request.evened * sizes.aligned[chosen]
    seconds = machine.seconds(kinds, work, sizes.aligned[chosen])
    bounds = np.append(np.flatnonzero(np.diff(step, prepend=-1)), len(step))
    steps = [
        form_rounds(machine.degrees, kinds[a:b], seconds[a:b], machine.num_ranks, is_one=machine.is_one)
        if len(machine.degrees) > 1
        else _in_order(b - a, machine)
        for a, b in itertools.pairwise(bounds.tolist())
    ]
    numbered = np.repeat(np.arange(len(steps)), np.diff(bounds))
    iterations = _on_gpus(steps, chosen, kinds, numbered, sizes, request)
    return scheduled(iterations, sizes, plan.packs.group, request, epoch)


def _cut(lengths: Int64Array, most: int) -> list[int]:
    """Where steps of at most so many tokens begin, and the end; a longer sample is a step of its own."""
    ends = np.cumsum(lengths)
    bounds = [0]
    while bounds[-1] < len(lengths):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + most, side="right"))))
    return bounds


def _by_group(
    offsets: Int64Array, members: Int32Array, kinds: Int64Array, num_groups: int
) -> tuple[list[GroupPacks], Int64Array]:
    """The packs of each group, and the number of each pack (int64[p]) through the groups."""
    order = np.argsort(kinds, kind="stable")
    number = np.empty(len(kinds), dtype=np.int64)
    number[order] = np.arange(len(kinds))
    by_group = []
    for own in np.split(order, np.searchsorted(kinds[order], np.arange(1, num_groups))):
        of_group = select_packs(offsets, members, own)
        by_group.append(GroupPacks(offsets=of_group[0], pieces=of_group[1], num_whole=len(own), is_spread=False))
    return by_group, number


def _on_gpus(
    steps: Sequence[Rounds],
    number: Int64Array,
    kinds: Int64Array,
    step: Int64Array,
    sizes: PackSizes,
    request: PlanRequest,
) -> Iterations:
    """Rounds as iterations, with fillers on ranks that stay idle. Where replicas run freely, consecutive rounds of a
    step with the same replicas are one.

    Args:
        number, kinds, step: int64[p], of each pack, step by step.
    """
    groups = request.groups
    degrees = np.array([group.cp_size for group in groups])
    num_ranks = request.num_gpus // _gpus_of_rank(request)
    none = np.empty(0, dtype=np.int64)
    counts = np.array([int(found.round.max()) + 1 for found in steps], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(counts)])
    round_of = np.concatenate([none, *(found.round + first for found, first in zip(steps, before, strict=False))])
    first_rank = np.concatenate([none, *(found.first_rank for found in steps)])
    # Ranks without a pack.
    change = np.zeros((int(before[-1]), num_ranks + 1), dtype=np.int64)
    np.add.at(change, (round_of, first_rank), 1)
    np.add.at(change, (round_of, first_rank + degrees[kinds]), -1)
    idle_round, idle_rank = np.nonzero(np.cumsum(change, axis=1)[:, : -1 : degrees[0]] == 0)
    idle_rank *= degrees[0]
    num_idle = len(idle_round)
    iteration = np.concatenate([round_of, idle_round])
    slot_rank = np.concatenate([first_rank, idle_rank])
    slot_pack = np.concatenate([number, np.full(num_idle, FILLER)])
    slot_group = np.concatenate([kinds, np.zeros(num_idle, dtype=np.int64)])
    round_step = np.repeat(np.arange(len(steps)), counts)
    if request.lockstep == 1:
        merged = _merge(iteration, slot_rank, slot_group, round_step)
        iteration, round_step = merged[iteration], round_step[np.flatnonzero(np.diff(merged, prepend=-1))]
    # A filler stands after the packs of its replica, which then needs none.
    falling = -np.append(sizes.work, 0)[slot_pack] if request.steps.longest_first else np.zeros(len(slot_pack))
    order = np.lexsort((np.arange(len(slot_pack)), falling, slot_rank, iteration))
    iteration, slot_rank, slot_pack, slot_group = (a[order] for a in (iteration, slot_rank, slot_pack, slot_group))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (np.diff(iteration) != 0) | (np.diff(slot_rank) != 0)
    is_used = begins | (slot_pack != FILLER)
    iteration, slot_rank, slot_pack, slot_group = (a[is_used] for a in (iteration, slot_rank, slot_pack, slot_group))
    tokens = np.append(sizes.aligned, 0)[slot_pack]
    if request.lockstep is None:
        longest = np.zeros((len(round_step), len(groups)), dtype=np.int64)
        np.maximum.at(longest, (iteration, slot_group), tokens)
        tokens = longest[iteration, slot_group]
    return Iterations(
        offsets=np.searchsorted(iteration, np.arange(len(round_step) + 1)),
        slot_pack=as_ids(slot_pack),
        slot_group=slot_group.astype(np.int16),
        slot_first_gpu=(slot_rank * _gpus_of_rank(request)).astype(np.int32),
        slot_row_length=round_up_rows(tokens, groups, slot_group).astype(np.int32),
        step=round_step,
        is_dealt=True,
    )


def _merge(iteration: Int64Array, rank: Int64Array, group: Int64Array, step: Int64Array) -> Int64Array:
    """The new number (int64[r]) of each round, one for consecutive rounds of a step with the same replicas.

    Args:
        iteration, rank, group: int64[k], of each slot; those of a replica are several.
        step: int64[r], of each round.
    """
    replicas = np.unique(np.stack([iteration, rank, group]), axis=1)
    offsets = np.searchsorted(replicas[0], np.arange(len(step) + 1))
    size = np.diff(offsets)
    is_new = np.ones(len(step), dtype=np.bool_)
    is_new[1:] = (np.diff(step) != 0) | (np.diff(size) != 0)
    compared = np.flatnonzero(~is_new[replicas[0]])
    earlier = compared - size[replicas[0][compared]]
    is_other = (replicas[1:, compared] != replicas[1:, earlier]).any(axis=0)
    is_new[replicas[0][compared[is_other]]] = True
    merged: Int64Array = np.cumsum(is_new) - 1
    return merged
