"""From pieces to a plan: the arrival stream, packed step by step.

Each step is dealt to the replicas, so that the slowest pipeline ends as early as possible.
A replica of p pipeline stages takes `sum t + (p - 1) max t` over its micro-batches (WLB-LLM, arXiv 2503.17924, figure
5). They are dealt longest first, then exchanged between the slowest replica and the others while that helps. Price:
O(k^2) for the k micro-batches of a step, at most `_EXCHANGES` times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import group_by_pack, pack_tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.iterations import Iterations, Slots
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Delays, Float64Array, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.kernels.durations import pipeline_seconds
from packer_cli.plan.strategies.assemble import make_packs, numbered_plan, pack_sizes, packs_by_step
from packer_cli.plan.strategies.protocol import PlanRequest, Rates
from packer_cli.plan.strategies.wlb.arrival import Arrivals, PackedSteps, arrive, in_batches
from packer_cli.plan.strategies.wlb.packers import StepOptions

_FORWARD = 1 / 3
"""Share of a micro-batch's time in its forward pass, without recompute."""


def plan_steps(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces in the order in which a seeded stream brings them. Price: that of the packer, and O(m).

    Packs are the same in all epochs: the first runs the steps as they were packed, the others in another order.

    Args:
        request: the capacity of the one group is the context window; the plan's is what a micro-batch may hold.
    """
    (window,), packer, options = request.groups, request.algorithm, request.packing_options
    assert isinstance(options, StepOptions)
    num_replicas = window.num_dp_ranks(request.num_gpus)
    most = options.in_step(window, num_replicas, request.steps.global_tokens)
    of_step = most * num_replicas
    rows = 1 if options.cut == "row" else of_step
    pieces = arrive(pieces, rows * window.capacity, request.seed, window.align)
    arrivals = in_batches(
        pieces, of_step, window.capacity, linear=request.linear, seed=request.seed, align=window.align
    )
    best, fastest = None, np.inf
    for number, capacity in enumerate(options.capacities(window.capacity)):
        packed = packer.pack(arrivals, options, capacity)
        plan = _plan_of(packed, arrivals, pieces, replace(window, capacity=capacity), most, request)
        seconds = epoch_seconds(plan, request.rates[number]) if request.rates else 0.0
        if seconds < fastest:
            best, fastest = plan, seconds
    assert best is not None
    return best


def epoch_seconds(plan: Plan, rates: Rates) -> float:
    """Predict the time of the first epoch: in each step, that of its slowest pipeline. O(m) and 1F1B.

    Args:
        rates: of a micro-batch on one stage.
    """
    (group,), schedule = plan.groups, plan.epochs[0]
    tokens, squares = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
    quadratic, linear, constant = rates
    seconds = np.append(quadratic * squares + linear * tokens + constant, 0.0)[schedule.slot_pack]
    begins = np.flatnonzero(np.append(schedule.begins_replica, True))
    number = len(begins) - 1
    done = pipeline_seconds(
        begins,
        seconds,
        np.full(len(seconds), _FORWARD),
        np.full(number, group.pp_size),
        np.full(number, group.vpp_size),
    )
    slowest = np.zeros(schedule.num_steps)
    np.maximum.at(slowest, schedule.iteration_step[schedule.slot_iteration[begins[:-1]]], done)
    return float(slowest.sum())


def _plan_of(
    packed: PackedSteps, arrivals: Arrivals, pieces: Pieces, group: Group, most: int, request: PlanRequest
) -> Plan:
    of_step = arrivals.num_micro_batches
    offsets, members = group_by_pack(
        packed.row_of, as_ids(np.arange(len(pieces))), int(packed.row_of.max(initial=-1)) + 1
    )
    row = np.flatnonzero(np.diff(offsets))
    packs = make_packs(np.append(offsets[row], len(members)), members, np.zeros_like(row))
    number, step, sizes = np.arange(len(row)), row // of_step, pack_sizes(pieces, packs, request)
    if request.algorithm.deals:
        replica = deal_steps(step, sizes.work.astype(np.float64), of_step // most, most, group.pp_size)
    else:  # Replica after replica takes the next, as many each as there are rows for.
        replica = (number - np.searchsorted(step, step)) // most
    slots = Slots(step, replica, np.zeros_like(number), number, sizes.aligned, sizes.work)
    epochs = [schedule_steps(slots, group, request, each) for each in range(request.epochs)]
    delays = Delays(arrival=packed.arrival, thresholds=packed.thresholds, num_carried=packed.num_carried)
    return numbered_plan(pieces, packs, epochs, request, groups=(group,), lockstep=1, delays=delays)


def rest_of_steps(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule the steps of the plan's first epoch with the chosen packs alone (int64[r]), on other replicas. O(m)."""
    (group,), sizes = plan.groups, pack_sizes(plan.pieces, plan.packs, request)
    (packs, step), num_replicas = packs_by_step(plan, chosen), group.num_dp_ranks(request.num_gpus)
    most = -(-int(np.bincount(step).max(initial=1)) // num_replicas)
    replica = deal_steps(step, sizes.work[packs].astype(np.float64), num_replicas, most, group.pp_size)
    slots = Slots(step, replica, np.zeros_like(packs), packs, sizes.aligned[packs], sizes.work[packs])
    return schedule_steps(slots, group, request, epoch)


def schedule_steps(slots: Slots, group: Group, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule the micro-batches of each step on their replicas. O(p log p).

    The seed decides which replica gets which share, so that none always ends last. A replica runs its longest
    micro-batch first, and a filler if it has none. Epochs above 0 run the steps in a seeded order.

    Args:
        slots: each a micro-batch; their steps, 0 .. s-1, rising and none left out, stand in place of iterations, and
            the numbers of replicas in place of the first GPUs.
        group: of the packs; its degrees divide the GPUs.
    """
    step, num_replicas = slots.iteration, group.num_dp_ranks(request.num_gpus)
    num_steps = int(step[-1]) + 1 if len(step) else 0
    state = rng_state(request.seed, Stream.RANKS, epoch)
    names = np.array([shuffled(num_replicas, state) for _ in range(num_steps)], dtype=np.int64)
    first_gpu = names.reshape(-1, num_replicas)[step, slots.first_gpu] * group.num_gpus
    if epoch:
        step = shuffled(num_steps, rng_state(request.seed, Stream.ORDER, epoch))[step].astype(np.int64)
    slots = slots._replace(iteration=step, first_gpu=first_gpu)
    return Iterations.of(slots, [group], request.num_gpus).run(np.arange(num_steps), np.arange(num_steps))


_EXCHANGES = 64
"""Most exchanges a step."""


@njit(cache=True)
def deal_steps(step: Int64Array, times: Float64Array, num_replicas: int, most: int, pp_size: int) -> Int64Array:
    """Deal micro-batches; return the replica (int64[p]) of each.

    Args:
        step: int64[p], of each: 0 .. s-1, rising, each of at most `num_replicas * most`.
        times: float64[p], on one stage of the pipeline.
        most: micro-batches of a replica in a step.
        pp_size: stages.
    """
    replica_of = np.zeros(len(times), dtype=np.int64)
    offsets = np.searchsorted(step, np.arange(step[-1] + 2)) if num_replicas > 1 and len(step) else np.arange(1)
    for number in range(len(offsets) - 1):
        own = slice(offsets[number], offsets[number + 1])
        _deal(times[own], num_replicas, most, pp_size - 1, replica_of[own])
        for _ in range(_EXCHANGES):
            if not _exchange(times[own], num_replicas, pp_size - 1, replica_of[own]):
                break
    return replica_of


@njit(cache=True)
def _deal(times: Float64Array, num_replicas: int, most: int, bubbles: int, replica_of: Int64Array) -> None:
    """Deal longest first, each to the replica with room that then ends first, the first of equals."""
    total, longest = np.zeros(num_replicas), np.zeros(num_replicas)
    count = np.zeros(num_replicas, dtype=np.int64)
    for k in np.argsort(-times, kind="mergesort"):
        best, earliest = -1, np.inf
        for r in range(num_replicas):
            end = total[r] + times[k] + bubbles * max(longest[r], times[k])
            if count[r] < most and end < earliest:
                best, earliest = r, end
        replica_of[k] = best
        total[best] += times[k]
        longest[best] = max(longest[best], times[k])
        count[best] += 1


@njit(cache=True)
def _exchange(times: Float64Array, num_replicas: int, bubbles: int, replica_of: Int64Array) -> bool:
    """Exchange the two micro-batches, one of the slowest replica, after which the slower of both ends first.

    Returns False if no exchange helps.
    """
    total, first, second = np.zeros(num_replicas), np.zeros(num_replicas), np.zeros(num_replicas)
    for k in range(len(times)):  # The longest and the second longest of each.
        r, t = replica_of[k], times[k]
        total[r] += t
        if t > first[r]:
            first[r], second[r] = t, first[r]
        elif t > second[r]:
            second[r] = t
    slowest = np.argmax(total + bubbles * first)
    best_a = best_b = -1
    least = total[slowest] + bubbles * first[slowest]
    for a in range(len(times)):
        if replica_of[a] != slowest:
            continue
        rest_a = second[slowest] if times[a] == first[slowest] else first[slowest]
        for b in range(len(times)):
            other = replica_of[b]
            if other == slowest or times[b] >= times[a]:
                continue
            rest_b = second[other] if times[b] == first[other] else first[other]
            of_a = total[slowest] - times[a] + times[b] + bubbles * max(rest_a, times[b])
            of_b = total[other] - times[b] + times[a] + bubbles * max(rest_b, times[a])
            if max(of_a, of_b) < least * (1 - 1e-12):
                best_a, best_b, least = a, b, max(of_a, of_b)
    if best_a < 0:
        return False
    replica_of[best_a], replica_of[best_b] = replica_of[best_b], replica_of[best_a]
    return True
