"""A whole data set: its samples arrive in steps, in random order, and each step is planned for itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.cost import GroupCosts, tokens_and_work
from packer_cli.plan.core.csr import group_by_pack
from packer_cli.plan.core.iterations import Iterations, Slots
from packer_cli.plan.core.segments import align_up
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Float64Array, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.packing.next_fit import cut_steps, next_fit
from packer_cli.plan.strategies.assemble import PackSizes, assemble, make_packs, pack_sizes, packs_by_step, scheduled
from packer_cli.plan.strategies.dynamic_cp.rounds import Rounds, form_rounds, place_freely, rounds_between
from packer_cli.plan.strategies.dynamic_cp.schedulers import cut_rounds, dynamic_rounds, pack_by_need
from packer_cli.plan.strategies.protocol import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Degrees (k of them) and equal ranks that a step is planned for."""

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
        """Make the machine of a request."""
        degrees, capacity = (np.array([getattr(g, each) for g in request.groups]) for each in ("cp_size", "capacity"))
        return cls(
            degrees=degrees,
            capacity=capacity,
            num_ranks=request.num_gpus // _gpus_of_rank(request),
            costs=None if request.rates is None else GroupCosts.of(request.groups, request.rates),
            is_one=request.lockstep != 1,
        )

    def seconds(self, kinds: Int64Array, tokens: Int64Array, work: Int64Array) -> Float64Array:
        """Return the seconds of each pack (float64[p]) at these degrees."""
        return work / self.degrees[kinds] if self.costs is None else self.costs.seconds(kinds, work, tokens)

    def rounds(self, kinds: Int64Array, seconds: Float64Array) -> Rounds:
        """Form rounds of packs of these degrees (int64[p]) and seconds (float64[p])."""
        if len(self.degrees) > 1 and self.is_one:
            return form_rounds(self.degrees, kinds, seconds, self.num_ranks)
        if len(self.degrees) > 1:
            order = np.argsort(-seconds, kind="stable")
            return Rounds(np.argsort(order), place_freely(order, self.degrees[kinds], seconds, self.num_ranks))
        degree, number = int(self.degrees[0]), np.arange(len(kinds))
        replicas = self.num_ranks // degree
        return Rounds(number // replicas, number % replicas * degree)

    def fewest(self, kinds: Int64Array, found: Rounds) -> Rounds:
        """Return rounds of packs of these degrees (int64[p]); if replicas run freely, the fewest that do as well."""
        if self.is_one:
            return found
        order = np.argsort(found.round, kind="stable")
        return found._replace(round=rounds_between(order, self.degrees[kinds], found.first_rank, self.num_ranks))


def _gpus_of_rank(request: PlanRequest) -> int:
    """Return the number of GPUs that divide the model."""
    return request.groups[0].num_gpus // request.groups[0].cp_size


StepPlan = tuple[Int64Array, Int64Array, Rounds]
"""The pack of each sample (int64[n]), the degree of each pack (int64[p], as an index), and when and where it runs."""


def _fcp(falling: Int64Array, machine: Machine) -> StepPlan:
    """Plan a step as FCP: samples share packs of their least degrees, and packs of like time a round."""
    pack_of, kinds = pack_by_need(falling, machine.capacity, shares_rows=True)
    all_kinds = np.arange(len(machine.degrees))[:, None]
    seconds = machine.seconds(all_kinds, *tokens_and_work(pack_of, falling, len(kinds)))
    grown, found = cut_rounds(kinds, seconds, machine.degrees, machine.num_ranks)
    return pack_of, grown, found if machine.is_one else machine.rounds(grown, np.choose(grown, seconds))


def _bytescale(falling: Int64Array, machine: Machine) -> StepPlan:
    """Plan a step as ByteScale: samples of several ranks are alone, others share packs, lagging replicas take more."""
    pack_of, kinds = pack_by_need(falling, machine.capacity, shares_rows=False)
    seconds = machine.seconds(kinds, *tokens_and_work(pack_of, falling, len(kinds)))
    return pack_of, kinds, machine.rounds(kinds, seconds)


def _megatron(falling: Int64Array, machine: Machine) -> StepPlan:
    """Plan a step as Megatron-LM's `default_dynamic_cp`."""
    return dynamic_rounds(falling, machine.degrees, machine.capacity, machine.num_ranks)


PLANNERS: Mapping[str, Callable[[Int64Array, Machine], StepPlan]] = {
    "fcp": _fcp,
    "bytescale": _bytescale,
    "megatron": _megatron,
}
"""By strategy, but for `dp-balanced`: (falling lengths int64[n], machine) -> the step."""


def packs_of_one_degree(lengths: Int64Array, capacity: int, num_replicas: int) -> Int64Array:
    """Pack a step's samples by next fit in order of arrival; return each one's pack (int64[n]).

    The packs rise but for samples that moved.

    Then the last samples of the last packs become packs of their own until the replicas divide the packs. Where there
    are too few samples, some replicas stay idle in the last round; Megatron-LM refuses such a step. O(n).

    Args:
        lengths: int64[n], none above `capacity`.
    """
    offsets = next_fit(lengths.astype(np.int32), capacity)
    pack_of, first, num = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), offsets.tolist(), len(offsets) - 1
    pack, last = num - 1, len(lengths) - 1
    while num % num_replicas and pack >= 0:
        if last > first[pack]:
            pack_of[last] = num
            num, last = num + 1, last - 1
        else:
            pack, last = pack - 1, first[pack] - 1
    return pack_of


def _plan_step(lengths: Int64Array, machine: Machine, strategy: str) -> StepPlan:
    """Plan a step's samples (int64[n]), which are in order of arrival."""
    if strategy == "dp-balanced":
        pack_of = packs_of_one_degree(lengths, int(machine.capacity[0]), machine.num_ranks // int(machine.degrees[0]))
        kinds = np.zeros(int(pack_of.max(initial=-1)) + 1, dtype=np.int64)
        return pack_of, kinds, machine.fewest(kinds, machine.rounds(kinds, kinds.astype(np.float64)))
    order = np.argsort(-lengths, kind="stable")
    of_sorted, kinds, found = PLANNERS[strategy](lengths[order], machine)
    pack_of = np.empty_like(of_sorted)
    pack_of[order] = of_sorted
    return pack_of, kinds, machine.fewest(kinds, found)


def plan_by_steps(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces step by step, in the order of a seeded stream. Later epochs run the same steps shuffled."""
    machine, name = Machine.of(request), request.strategy.name
    order = shuffled(len(pieces), rng_state(request.seed, Stream.ARRIVAL))
    lengths = align_up(pieces.length, request.groups[0].align)[order].astype(np.int64)
    assert request.steps.global_tokens is not None
    bounds = cut_steps(lengths, request.steps.global_tokens).tolist()
    steps = [_plan_step(lengths[a:b], machine, name) for a, b in itertools.pairwise(bounds)]
    before = np.concatenate([[0], np.cumsum([len(kinds) for _, kinds, _ in steps])])
    pack_of = np.concatenate([own + first for (own, _, _), first in zip(steps, before, strict=False)])
    offsets, places = group_by_pack(pack_of, as_ids(np.arange(len(order))), int(before[-1]))
    kinds = np.concatenate([own for _, own, _ in steps])
    packs = make_packs(offsets, order[places], kinds)
    sizes = pack_sizes(pieces, packs, request)
    iterations = _on_gpus([found for *_, found in steps], np.arange(len(packs)), kinds, sizes, request)
    return assemble(pieces, packs, iterations, sizes, request)


def rest_of_steps(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Plan the same steps in rounds formed anew of packs (int64[r], their numbers) that keep their degrees."""
    machine, sizes = Machine.of(request), pack_sizes(plan.pieces, plan.packs, request)
    chosen, step = packs_by_step(plan, chosen)
    kinds = plan.packs.group[chosen].astype(np.int64)
    work = sizes.work[chosen] - request.evened * sizes.aligned[chosen]
    seconds = machine.seconds(kinds, sizes.aligned[chosen], work)
    bounds = np.append(np.flatnonzero(np.diff(step, prepend=-1)), len(step)).tolist()
    parts = [(kinds[a:b], seconds[a:b]) for a, b in itertools.pairwise(bounds)]
    steps = [machine.fewest(own, machine.rounds(own, times)) for own, times in parts]
    iterations = _on_gpus(steps, chosen, kinds, sizes, request)
    return scheduled(iterations, sizes, plan.packs.group, request, epoch)


def _on_gpus(
    steps: Sequence[Rounds], number: Int64Array, kinds: Int64Array, sizes: PackSizes, request: PlanRequest
) -> Iterations:
    """Make iterations of rounds, with fillers on ranks that stay idle.

    Args:
        number, kinds: int64[p], of each pack, step by step.
    """
    step = np.repeat(np.arange(len(steps)), np.array([len(found.round) for found in steps], dtype=np.int64))
    counts = np.array([int(found.round.max()) + 1 for found in steps], dtype=np.int64)
    none, first_round = np.empty(0, dtype=np.int64), (np.cumsum(counts) - counts)[step]
    slots = Slots(
        iteration=np.concatenate([none, *(found.round for found in steps)]) + first_round,
        first_gpu=np.concatenate([none, *(found.first_rank for found in steps)]) * _gpus_of_rank(request),
        group=kinds,
        pack=number,
        tokens=sizes.aligned[number],
        load=sizes.work[number] if request.steps.longest_first else np.zeros(len(number), dtype=np.int64),
    )
    round_step = np.repeat(np.arange(len(steps)), counts)
    return Iterations.of(
        slots, request.groups, request.num_gpus, has_equal_rows=request.lockstep != 1, step=round_step, is_dealt=True
    )
