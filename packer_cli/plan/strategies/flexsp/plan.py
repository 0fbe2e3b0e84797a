"""From pieces to a plan: the whole data set at once (`iterations`), or batch by batch.

FlexSP as published (arXiv 2412.01523): samples arrive in batches, the steps, and each is planned for itself.

A batch is cut into micro-batches of similar lengths (section 4.2): samples by falling length, in consecutive parts
whose most tokens are least, from as few parts as the GPUs' memory allows to four more. Each part is solved, and the
number of parts with the least total time stays. BatchAda, the paper's baseline, does so with one degree for all groups
of a batch, and takes the best.

A batch has few samples of each length, so its groups are less even, and its last micro-batch less full, than where the
whole data set is planned at once. Price: a few milliseconds a micro-batch that is tried with `search`, up to the time
limit with `milp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from packer_cli.format.ragged import offsets_of, owners
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.iterations import Iterations, Slots, cut_steps
from packer_cli.plan.core.segments import align_up
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces, Plan, Schedule, as_ids
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within
from packer_cli.plan.strategies.assemble import PackSizes, assemble, make_packs, pack_sizes, packs_by_step, scheduled
from packer_cli.plan.strategies.flexsp.iterations import form_iterations, joined, one_iteration, plan_data_set
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, least_seconds, solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import MixedIterations
from packer_cli.plan.strategies.protocol import PlanRequest

Solve = Callable[[Int32Array, GroupCosts, int, float], MicroBatch]
"""(lengths, costs, GPUs, seconds beyond which it is not wanted) -> the groups of one micro-batch"""


@dataclass(frozen=True, kw_only=True)
class BatchOptions(PackingOptions):
    """Options of every solver."""

    trials: int = within(5, 1, 2**20 - 1)
    """Numbers of micro-batches to try for a batch, from the least on."""


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(BatchOptions):
    """More buckets round lengths less, and make the program larger."""

    buckets: int = within(16, 1, 2**20 - 1)
    """Lengths that the program tells apart."""
    time_limit: float = within(5.0, 0, 86400, is_open=True)
    """Seconds for each micro-batch, of 5 to 15 in the paper; the answer of one that is cut off depends on the
    machine."""


def _search(lengths: Int32Array, costs: GroupCosts, num_gpus: int, limit: float, options: Any) -> MicroBatch:
    return solve_micro_batch(lengths, costs, num_gpus, limit)


def _program(
    lengths: Int32Array, costs: GroupCosts, num_gpus: int, limit: float, options: ProgramOptions
) -> MicroBatch:
    from packer_cli.plan.strategies.flexsp.milp import solve_in_buckets

    return solve_in_buckets(lengths, costs, num_gpus, num_buckets=options.buckets, time_limit=options.time_limit)


SOLVERS: Mapping[str, PackingAlgorithm] = {
    "search": PackingAlgorithm(
        name="search",
        summary="groups by search, within a few per cent of the program's",
        pack=_search,
        options=BatchOptions,
    ),
    "milp": PackingAlgorithm(
        name="milp",
        summary="FlexSP's integer program over buckets of lengths; slow",
        pack=_program,
        options=ProgramOptions,
    ),
}
"""Solvers that `--packing` names with FlexSP."""


def plan_batches(
    lengths: Int32Array,
    costs: GroupCosts,
    num_gpus: int,
    batch_tokens: int,
    *,
    solve: Solve = solve_micro_batch,
    trials: int = BatchOptions.trials,
    one_degree: bool = False,
) -> tuple[MixedIterations, Int64Array]:
    """Plan consecutive batches of samples (int32[n], in the order of training, none longer than every capacity).

    A batch is an optimizer step, and each of its micro-batches an iteration; return these, and the batch of each
    (int64[i]).

    Args:
        batch_tokens: most tokens of a batch; a longer sample is a batch of its own.
        solve: a micro-batch.
        trials: numbers of micro-batches to try.
        one_degree: BatchAda: all groups of a batch have the same degree.
    """
    costs = costs.up_to(num_gpus)
    assert lengths.max(initial=0) <= costs.capacity[-1]
    choices = [[kind] for kind in range(len(costs))] if one_degree else [[*range(len(costs))]]
    micro_batches: list[tuple[Int32Array, MicroBatch]] = []
    batch: list[int] = []
    for number, (begin, end) in enumerate(pairwise(cut_steps(lengths, batch_tokens).tolist())):
        falling = as_ids(begin + np.argsort(-lengths[begin:end], kind="stable"))
        best: list[tuple[Int32Array, MicroBatch]] = []
        fastest = np.inf
        for kinds in choices:
            if costs.capacity[kinds[-1]] < lengths[falling[0]]:
                continue
            chosen = costs.select(np.array(kinds))
            solved, seconds = _solve_batch(falling, lengths, chosen, num_gpus, trials, solve, fastest)
            if seconds < fastest:
                best = [(part, found._replace(kinds=np.array(kinds)[found.kinds])) for part, found in solved]
                fastest = seconds
        micro_batches += best
        batch += [number] * len(best)
    return joined([one_iteration(*each) for each in micro_batches]), np.array(batch, dtype=np.int64)


def _solve_batch(
    falling: Int32Array,
    lengths: Int32Array,
    costs: GroupCosts,
    num_gpus: int,
    trials: int,
    solve: Solve,
    at_most: float,
) -> tuple[list[tuple[Int32Array, MicroBatch]], float]:
    """Solve one batch (int32[n], samples by falling length); return its micro-batches, and their seconds.

    Args:
        at_most: seconds; what takes as long is not looked for, and then they are infinite.
    """
    tokens = lengths[falling].astype(np.int64)
    fits = int((costs.capacity * (num_gpus // costs.gpus)).max())
    least = max(1, -(-int(tokens.sum()) // fits))
    best: list[tuple[Int32Array, MicroBatch]] = []
    fastest, has_fitted = at_most, False
    for num_parts in range(least, len(falling) + 1):
        if num_parts >= least + trials and has_fitted:
            break
        parts = np.split(falling, cut_evenly(tokens, num_parts))
        bounds = [least_seconds(lengths[part].astype(np.int64), costs.arrays, num_gpus) for part in parts]
        solved: list[tuple[Int32Array, MicroBatch]] = []
        seconds, ahead = 0.0, sum(bounds)
        for part, bound in zip(parts, bounds, strict=True):
            if seconds + ahead >= fastest and has_fitted:
                seconds = np.inf
                break
            ahead -= bound
            limit = fastest - seconds - ahead if has_fitted else np.inf
            solved.append((part, solve(lengths[part], costs, num_gpus, limit)))
            seconds += solved[-1][1].seconds
        has_fitted |= seconds < np.inf
        if seconds < fastest:
            best, fastest = solved, seconds
    assert has_fitted  # A sample alone always fits.
    return best, fastest if best else np.inf


def cut_evenly(tokens: Int64Array, num_parts: int) -> Int64Array:
    """Cut a sequence (int64[n], each at least 1) into at most `num_parts` parts, so that the greatest sum is least.

    Return the places of the cuts, int64[parts - 1]. The paper's dynamic program, by binary search. O(parts log n log
    sum).

    >>> cut_evenly(np.array([5, 4, 3, 3]), 2).tolist()
    [2]
    """
    ends = np.cumsum(tokens)
    low, high = max(int(tokens.max()), -(-int(ends[-1]) // num_parts)), int(ends[-1])
    cuts = np.empty(0, dtype=np.int64)
    while low <= high:
        middle = (low + high) // 2
        found: list[int] = []
        before = 0
        while before < ends[-1] and len(found) <= num_parts:
            found.append(int(np.searchsorted(ends, before + middle, side="right")))
            before = int(ends[found[-1] - 1])
        if before >= ends[-1] and len(found) <= num_parts:
            cuts, high = np.array(found[:-1], dtype=np.int64), middle - 1
        else:
            low = middle + 1
    return cuts


def plan_mixed(pieces: Pieces, request: PlanRequest) -> Plan:
    """Pack all pieces for the groups, whose degrees differ, and divide the GPUs of each iteration.

    The lowest degree divides the others and the number of GPUs. Price: see `iterations`.
    """
    costs, lengths = GroupCosts.of(request.groups, request.rates), align_up(pieces.length, request.groups[0].align)
    seed = int(rng_state(request.seed, Stream.PACKING)[0])
    found = plan_data_set(lengths, costs, request.num_gpus, seed=seed, window=request.balance.window or 0)
    return plan_of(found, pieces, request, costs)


def plan_in_batches(pieces: Pieces, request: PlanRequest, *, one_degree: bool = False) -> Plan:
    """Plan the pieces batch by batch, in the order of a seeded stream; see the module.

    Args:
        one_degree: BatchAda, which solves its micro-batches by search.
    """
    costs, options = GroupCosts.of(request.groups, request.rates), request.packing_options
    tokens, num_gpus = request.steps.global_tokens, request.num_gpus
    assert tokens is not None
    order = shuffled(len(pieces), rng_state(request.seed, Stream.ARRIVAL))
    arrived = align_up(pieces.length, request.groups[0].align)[order]
    assert isinstance(options, BatchOptions)
    solve = partial(request.algorithm.pack, options=options)
    found, batch = plan_batches(
        arrived, costs, num_gpus, tokens, solve=solve, trials=options.trials, one_degree=one_degree
    )
    found = found._replace(samples=order[found.samples])
    return plan_of(found, pieces, request, costs, batch)


def plan_of(
    found: MixedIterations, pieces: Pieces, request: PlanRequest, costs: GroupCosts, step: Int64Array | None = None
) -> Plan:
    """Make the plan of iterations, whose steps (int64[i]) the options decide if they are None."""
    packs = make_packs(found.offsets, found.samples, found.kinds)
    sizes = pack_sizes(pieces, packs, request)
    iterations = _on_gpus(np.arange(len(packs)), found.kinds, found.iterations, sizes, request, step)
    return assemble(pieces, packs, iterations, sizes, request, costs)


plan_at_one_degree = partial(plan_in_batches, one_degree=True)
"""BatchAda."""


def rest_of_mixed(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule packs (int64[r], their numbers) that are there, in iterations formed anew. O(m + p log p).

    Where the strategy keeps its steps, packs of one step of the plan's first epoch stay together.
    """
    costs, sizes = GroupCosts.of(request.groups, request.rates), pack_sizes(plan.pieces, plan.packs, request)
    kinds = plan.packs.group.astype(np.int64)
    seconds = sizes.seconds(kinds, request, costs)
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
    iterations = _on_gpus(number, kinds[number], bounds, sizes, request, step)
    return scheduled(iterations, sizes, plan.packs.group, request, epoch, costs)


def _on_gpus(
    number: Int64Array,
    kinds: Int64Array,
    bounds: Int64Array,
    sizes: PackSizes,
    request: PlanRequest,
    step: Int64Array | None,
) -> Iterations:
    """Place replicas from GPU 0 on, in the order of the packs; GPUs that are left get fillers of the lowest degree.

    Args:
        number, kinds: int64[p], of each pack.
        bounds: int64[i+1], where each iteration begins.
        step: int64[i], of each iteration.
    """
    gpus = np.array([group.num_gpus for group in request.groups])[kinds]
    before, iteration = np.cumsum(gpus) - gpus, owners(np.diff(bounds))
    first_gpu = before - before[bounds[:-1]][iteration]
    slots = Slots(iteration, first_gpu, kinds, number, sizes.aligned[number], np.zeros_like(number))
    return Iterations.of(slots, request.groups, request.num_gpus, has_equal_rows=True, step=step)
