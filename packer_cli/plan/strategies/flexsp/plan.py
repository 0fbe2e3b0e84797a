"""From pieces to a plan: FlexSP (arXiv 2412.01523) batch by batch (`batches`), and ours, the whole data set at once.

Ours makes packs, then iterations of near-equal times that fill the GPUs. With all lengths at hand, every sample can
run at the degree of its least GPU-seconds, and packs of equal time still find each other. The waiting that remains is
about one iteration in all. In a small data set that is much; then lower limits on a pack's seconds are tried, which
move the longest samples to higher degrees.

Price: 0.5 s for a million samples. On mixes with a long tail the predicted time is within a thousandth of
`least_total_seconds` for a million samples, and within a few hundredths for some thirty iterations.

Iterations are as alike inside as HBP's sorted ones: packs with much attention work meet each other. `window` limits
that to a number of iterations at a time, whose samples are drawn at random.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from packer_cli.format.ragged import offsets_of, owners
from packer_cli.jit import njit
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import count_lengths, group_by_pack, pack_tokens_and_work, select_packs
from packer_cli.plan.core.iterations import Iterations, Slots
from packer_cli.plan.core.segments import align_up
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.strategies.assemble import PackSizes, assemble, make_packs, pack_sizes, packs_by_step, scheduled
from packer_cli.plan.strategies.flexsp.batches import BatchOptions, plan_batches
from packer_cli.plan.strategies.flexsp.micro_batch import solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import (
    MixedIterations,
    cheapest_degrees,
    joined,
    pack_by_degree,
)
from packer_cli.plan.strategies.protocol import PlanRequest

_SOLVE = 0.01
"""GPU-seconds that an iteration may wait, of all it takes, before its degrees are chosen anew."""


def form_iterations(
    kinds: Int64Array, seconds: Float64Array, degrees: Int64Array, num_gpus: int
) -> tuple[Int64Array, Int64Array]:
    """Divide packs into iterations; return the packs in their order (int64[p]), and where each begins (int64[i+1]).

    The slowest come first, and within an iteration the highest degrees.

    Each iteration begins with the slowest pack left, and then takes the slowest whose degree fits the GPUs left, as
    long as other degrees can fill what remains. So the waiting of all iterations together is about that of one: each
    begins where the one before ended. O(p k + p log p).

    Args:
        kinds, seconds: [p], the degree of each pack, as an index, and its time.
        degrees: int64[k], rising.
    """
    falling = np.lexsort((-seconds, kinds))
    begin = np.searchsorted(kinds[falling], np.arange(len(degrees) + 1))
    order, bounds = _form(falling, begin, seconds, degrees, num_gpus)
    return order[np.lexsort((-kinds[order], owners(np.diff(bounds))))], bounds


def iteration_seconds(found: MixedIterations, lengths: Int32Array, costs: GroupCosts) -> Float64Array:
    """Return the seconds (float64[i]) of the slowest pack of each iteration. O(m)."""
    seconds = pack_seconds(found.offsets, found.samples, found.kinds, lengths, costs)
    return np.maximum.reduceat(seconds, found.iterations[:-1]) if len(seconds) else seconds


def pack_seconds(
    offsets: Int64Array, samples: Int32Array, kinds: Int64Array, lengths: Int32Array, costs: GroupCosts
) -> Float64Array:
    """Predict the seconds (float64[p]) of each pack at its degree. O(m)."""
    tokens, work = pack_tokens_and_work(offsets, samples, lengths)
    return costs.seconds(kinds, work, tokens)


@njit(cache=True)
def _form(
    order: Int64Array, begin: Int64Array, seconds: Float64Array, degrees: Int64Array, num_gpus: int
) -> tuple[Int64Array, Int64Array]:
    """Form iterations; return the packs in their order (int64[p]), and each iteration's first place (int64[i+1]).

    Args:
        order: int64[p], packs by degree, then falling seconds.
        begin: int64[k+1], where each degree begins.
    """
    at = begin[:-1].copy()
    new_order, offsets = np.empty_like(order), np.zeros(len(order) + 1, dtype=np.int64)
    done, num = 0, 0
    can_fill = np.zeros(num_gpus + 1, dtype=np.bool_)
    last = np.int64(-1)
    while done < len(order):
        left = num_gpus
        while left > 0:
            available = np.int64(0)
            for kind in range(len(degrees)):
                available += at[kind] < begin[kind + 1]
            if available != last:  # A degree has run out.
                last = available
                can_fill[:] = False
                can_fill[0] = True
                for kind in range(len(degrees)):
                    if at[kind] < begin[kind + 1]:
                        for gpus in range(degrees[kind], num_gpus + 1):
                            can_fill[gpus] |= can_fill[gpus - degrees[kind]]
            best, fills = -1, False
            for kind in range(len(degrees)):
                if at[kind] < begin[kind + 1] and degrees[kind] <= left:
                    to_end = can_fill[left - degrees[kind]]
                    if (
                        best < 0
                        or (to_end and not fills)
                        or (to_end == fills and seconds[order[at[kind]]] > seconds[order[at[best]]])
                    ):
                        best, fills = kind, to_end
            if best < 0:
                break
            new_order[done] = order[at[best]]
            at[best] += 1
            done += 1
            left -= degrees[best]
        num += 1
        offsets[num] = done
    return new_order, offsets[: num + 1].copy()


def improve_iterations(
    found: MixedIterations, lengths: Int32Array, costs: GroupCosts, num_gpus: int
) -> MixedIterations:
    """Choose the degrees of the iterations that wait anew, and which samples their packs have.

    No iteration becomes slower, and each keeps its samples. O(m), and a few milliseconds for an iteration that waits.
    """
    offsets, samples, kinds, first = found
    of_packs, bounds = pack_seconds(offsets, samples, kinds, lengths, costs), offsets[first]
    seconds = np.maximum.reduceat(of_packs, first[:-1]) if len(of_packs) else of_packs
    pack_of, iteration = owners(np.diff(offsets)), owners(np.diff(first))
    busy = np.bincount(iteration, costs.rates[5, kinds] * of_packs, len(seconds))
    for j in np.flatnonzero(busy < num_gpus * seconds * (1 - _SOLVE)).tolist():
        own = slice(bounds[j], bounds[j + 1])
        solved = solve_micro_batch(lengths[samples[own]], costs, num_gpus)
        if solved.seconds < seconds[j]:
            pack_of[own] = len(kinds) + solved.group_of
            kinds, iteration = np.append(kinds, solved.kinds), np.append(iteration, np.full_like(solved.kinds, j))
    offsets, members = group_by_pack(pack_of, as_ids(np.arange(len(pack_of))), len(kinds))
    used = np.flatnonzero(np.diff(offsets))
    used = used[np.argsort(iteration[used], kind="stable")]
    first = np.searchsorted(iteration[used], np.arange(len(bounds)))
    return MixedIterations(*select_packs(offsets, samples[members], used), kinds[used], first)


_LIMITS = (0.95, 0.88, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Limits on a pack's seconds to try, as shares of the slowest pack's."""
_GOOD = 0.005
"""No limits are tried if the total is within this share of the bound."""


def plan_data_set(
    lengths: Int32Array, costs: GroupCosts, num_gpus: int, *, seed: int = 0, window: int = 0
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
        full = num_gpus // costs.gpus * costs.capacity
        num_windows = max(1, round(int(lengths.sum(dtype=np.int64)) / (window * int(full.max()))))
    if num_windows == 1:
        return _plan(lengths, costs, num_gpus, seed)
    order = shuffled(len(lengths), rng_state(seed, Stream.BALANCE))
    parts = []
    for number, members in enumerate(np.array_split(order, num_windows)):
        part = _plan(lengths[members], costs, num_gpus, int(rng_state(seed, Stream.PACKING, number)[0]))
        parts.append(part._replace(samples=members[part.samples]))
    return joined(parts)


def least_total_seconds(lengths: Int32Array, costs: GroupCosts, num_gpus: int) -> float:
    """Bound any plan's seconds from below: all GPUs busy, samples at their cheapest degrees in full packs. O(n)."""
    costs = costs.up_to(num_gpus)
    count = count_lengths(lengths)
    length = np.flatnonzero(count)
    return float(count[length] @ cheapest_degrees(length, costs)[1]) / num_gpus


def _plan(lengths: Int32Array, costs: GroupCosts, num_gpus: int, seed: int) -> MixedIterations:
    best, seconds = _plan_within(lengths, costs, num_gpus, seed, np.inf)
    total = seconds.sum()
    if total > least_total_seconds(lengths, costs, num_gpus) * (1 + _GOOD):
        for share in _LIMITS:
            other, of_other = _plan_within(lengths, costs, num_gpus, seed, share * seconds.max())
            if of_other.sum() < total:
                best, total = other, of_other.sum()
    return best


def _plan_within(
    lengths: Int32Array, costs: GroupCosts, num_gpus: int, seed: int, limit: float
) -> tuple[MixedIterations, Float64Array]:
    packs = pack_by_degree(lengths, costs, seed, limit)
    order, bounds = form_iterations(packs.kinds, pack_seconds(*packs, lengths, costs), costs.gpus, num_gpus)
    chosen = select_packs(packs.offsets, packs.samples, order)
    found = improve_iterations(MixedIterations(*chosen, packs.kinds[order], bounds), lengths, costs, num_gpus)
    return found, iteration_seconds(found, lengths, costs)


def plan_mixed(pieces: Pieces, request: PlanRequest) -> Plan:
    """Pack all pieces for the groups, whose degrees differ, and divide the GPUs of each iteration.

    The lowest degree divides the others and the number of GPUs. Price: see `iterations`.
    """
    costs, lengths = GroupCosts.of(request.groups, request.rates), align_up(pieces.length, request.groups[0].align)
    seed = int(rng_state(request.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, request.num_gpus, seed=seed, window=request.balance.window or 0)
    return plan_of(found, pieces, request)


def plan_in_batches(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces batch by batch, in the order of a seeded stream; see `batches`.

    All groups of a batch have one degree where a strategy does not mix them within iterations, as BatchAda.
    """
    costs, options = GroupCosts.of(request.groups, request.rates), request.packing_options
    tokens, num_gpus = request.steps.global_tokens, request.num_gpus
    assert tokens is not None
    order = shuffled(len(pieces), rng_state(request.seed, Stream.ARRIVAL))
    arrived = align_up(pieces.length, request.groups[0].align)[order]
    assert isinstance(options, BatchOptions)
    solve = partial(request.algorithm.pack, options=options)
    one_degree = request.strategy.ability == "degrees"
    found, batch = plan_batches(
        arrived, costs, num_gpus, tokens, solve=solve, trials=options.trials, one_degree=one_degree
    )
    found = found._replace(samples=order[found.samples])
    return plan_of(found, pieces, request, batch)


def plan_of(found: MixedIterations, pieces: Pieces, request: PlanRequest, step: Int64Array | None = None) -> Plan:
    """Make the plan of iterations, whose steps (int64[i]) the options decide if they are None."""
    packs = make_packs(found.offsets, found.samples, found.kinds)
    sizes = pack_sizes(pieces, packs, request)
    iterations = _on_gpus(np.arange(len(packs)), found.kinds, found.iterations, sizes, request)
    return assemble(pieces, packs, replace(iterations, step=step), sizes, request)


def rest_of_mixed(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule packs (int64[r], their numbers) that are there, in iterations formed anew. O(m + p log p).

    Where the strategy keeps its steps, packs of one step of the plan's first epoch stay together.
    """
    costs, sizes = GroupCosts.of(request.groups, request.rates), pack_sizes(plan.pieces, plan.packs, request)
    kinds = plan.packs.group.astype(np.int64)
    seconds = sizes.seconds(kinds, request)
    step, parts = None, [chosen]
    if request.strategy.keeps_steps:
        by_step, of_pack = packs_by_step(plan, chosen)
        parts = np.split(by_step, np.flatnonzero(np.diff(of_pack)) + 1)
    formed = [form_iterations(kinds[part], seconds[part], costs.gpus, request.num_gpus) for part in parts]
    number = np.concatenate([part[order] for part, (order, _) in zip(parts, formed, strict=True)])
    counts = [len(bounds) - 1 for _, bounds in formed]
    if request.strategy.keeps_steps:
        step = np.repeat(np.arange(len(formed)), counts)
    bounds = offsets_of(np.concatenate([np.diff(bounds) for _, bounds in formed]))
    iterations = replace(_on_gpus(number, kinds[number], bounds, sizes, request), step=step)
    return scheduled(iterations, sizes, plan.packs.group, request, epoch)


def _on_gpus(
    number: Int64Array, kinds: Int64Array, bounds: Int64Array, sizes: PackSizes, request: PlanRequest
) -> Iterations:
    """Place replicas from GPU 0 on, in the order of the packs; GPUs that are left get fillers of the lowest degree.

    Args:
        number, kinds: int64[p], of each pack.
        bounds: int64[i+1], where each iteration begins.
    """
    gpus = np.array([group.num_gpus for group in request.groups])[kinds]
    before, iteration = np.cumsum(gpus) - gpus, owners(np.diff(bounds))
    first_gpu = before - before[bounds[:-1]][iteration]
    slots = Slots(iteration, first_gpu, kinds, number, sizes.aligned[number], np.zeros_like(number))
    return Iterations.of(slots, request.groups, request.num_gpus, has_equal_rows=True)
