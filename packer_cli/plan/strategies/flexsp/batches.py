"""Batch by batch, as FlexSP is published (arXiv 2412.01523): samples arrive in steps, each planned for itself.

A batch is cut into micro-batches of similar lengths (section 4.2): samples by falling length, in consecutive parts
whose most tokens are least, from as few parts as the GPUs' memory allows to four more. Each part is solved, and the
number of parts with the least total time stays. BatchAda, the paper's baseline, does so with one degree for all groups
of a batch, and takes the best.

A batch has few samples of each length, so its groups are less even, and its last micro-batch less full, than where the
whole data set is planned at once. Price: a few milliseconds a micro-batch that is tried with `search`, up to the time
limit with `milp`.

`milp` solves one micro-batch by integer programming, section 4.1, through PuLP. Over virtual groups p, floor(G / d) of
each degree d, and samples of equal length (or one bucket) k: minimise Z with `time_p <= Z`,
`tokens_p <= capacity_p m_p`, each sample in one group, and `sum d_p m_p <= G`, where m_p says whether a group is used,
and A_kp how many samples of k it holds.

Ours, besides: groups of one degree are interchangeable, so they are used in order, and the longest samples stay in the
first ones; no sample is in a group that takes longer with it alone than the search of `micro_batch`; and used GPUs
take time together, `sum d_p time_p <= G Z`, which tightens the relaxation.

Price: exponential. Up to about 20 samples or buckets on 16 GPUs are solved in seconds; larger ones end with the best
answer at the time limit. `micro_batch` is within a few per cent in milliseconds.

Buckets are those of the least rounding. A bucket counts each of its samples at the length of its longest,
so that an integer program need not tell them apart. With lengths s_1 <= .. <= s_K, `err[k][q] = min over j < k of
err[j][q-1] + sum over j < i <= k of (s_k - s_i)`.

Here K counts distinct lengths, and sums come from prefix sums. Price: O(n + Q K^2), 0.3 s for 4,000 lengths in 16
buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.cost import GroupCosts, tokens_and_work
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program
from packer_cli.plan.packing.next_fit import cut_steps
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, least_seconds, solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import MixedIterations, joined, one_iteration


def solve_in_buckets(
    lengths: NDArray[np.integer], costs: GroupCosts, num_gpus: int, *, num_buckets: int, time_limit: float
) -> MicroBatch:
    """Find the fastest groups for the samples (int[n], tokens), or the best ones found within the time limit.

    Args:
        num_buckets: count samples at the longest length of their bucket (the paper has 16), to tell fewer apart. The
            answer is exact if there are as many as distinct lengths.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.

    Raises:
        RunError: no solver is installed.
    """
    costs = costs.up_to(num_gpus)
    falling = -np.sort(-np.asarray(lengths, dtype=np.int64))
    bound = float(least_seconds(falling, costs.arrays, num_gpus)) if len(falling) else 0
    start = solve_micro_batch(lengths, costs, num_gpus)
    if bound == np.inf or start.seconds <= bound * (1 + TOLERANCE):
        return start
    buckets = make_buckets(lengths, num_buckets)
    numbers = np.minimum(num_gpus // costs.gpus, len(falling))
    kinds = np.repeat(np.arange(len(costs)), numbers)
    held = _solve(buckets, kinds, costs, num_gpus, bound, start.seconds, time_limit)
    answer = start if held is None else _assign(held, kinds, lengths, buckets.longest, costs)
    return answer if answer.seconds < start.seconds else start


def _solve(
    buckets: Buckets, kinds: Int64Array, costs: GroupCosts, num_gpus: int, least: float, most: float, time_limit: float
) -> Int64Array | None:
    """Solve the integer program: the samples of each bucket in each group (int64[k, p]); None without an answer.

    Args:
        buckets: longest first.
        kinds: int64[p], the degree of each virtual group, rising.
        least, most: seconds between which the answer is; `most` may be infinite.
    """
    import pulp

    lengths, counts = buckets
    place = np.arange(len(kinds)) - np.searchsorted(kinds, kinds)  # Of a group among those of its degree.
    scale = most if np.isfinite(most) else least
    length = lengths[:, None].astype(np.float64)
    quadratic, linear, constant = costs.rates[:3, kinds] / scale
    seconds = (quadratic * length + linear) * length
    fits = length <= costs.capacity[kinds]
    if np.isfinite(most):
        fits &= seconds + constant <= 1 + TOLERANCE
    # Groups of a degree are numbered by their longest samples: the j-th holds none of the j longest.
    fits &= np.cumsum(counts)[:, None] > place

    problem = pulp.LpProblem("flexsp", pulp.LpMinimize)
    upper = 1.0 if np.isfinite(most) else None
    slowest = add_variable(problem, "z", lowBound=least / scale * (1 - TOLERANCE), upBound=upper)
    is_used = [add_variable(problem, f"m{p:04d}", cat=pulp.LpBinary) for p in range(len(kinds))]
    held = {
        (k, p): add_variable(problem, f"a{k:04d}_{p:04d}", lowBound=0, upBound=int(counts[k]), cat=pulp.LpInteger)
        for k, p in zip(*(index.tolist() for index in np.nonzero(fits)), strict=True)
    }
    problem += slowest
    for k in range(len(lengths)):
        problem += pulp.lpSum(held[k, p] for p in np.flatnonzero(fits[k]).tolist()) == int(counts[k])
    together = {slowest: -float(num_gpus)}
    for p, kind in enumerate(kinds.tolist()):
        own = np.flatnonzero(fits[:, p]).tolist()
        time = {held[k, p]: float(seconds[k, p]) for k in own} | {is_used[p]: float(constant[p])}
        share = {held[k, p]: int(lengths[k]) / int(costs.capacity[kind]) for k in own}
        problem += pulp.LpAffineExpression(time | {slowest: -1}) <= 0
        problem += pulp.LpAffineExpression(share | {is_used[p]: -1}) <= 0
        if place[p]:
            problem += pulp.LpAffineExpression({is_used[p]: 1, is_used[p - 1]: -1}) <= 0
        degree = int(costs.gpus[kind])
        together |= {variable: degree * value for variable, value in time.items()}
    problem += pulp.LpAffineExpression(together) <= 0
    gpus = {used: int(costs.gpus[kind]) for used, kind in zip(is_used, kinds.tolist(), strict=True)}
    problem += pulp.LpAffineExpression(gpus) <= num_gpus
    if not solve_program(problem, time_limit):
        return None
    found = np.zeros(fits.shape, dtype=np.int64)
    for (k, p), variable in held.items():
        found[k, p] = round(variable.varValue or 0)
    return found


def _assign(
    held: Int64Array, kinds: Int64Array, lengths: NDArray[np.integer], longest: Int64Array, costs: GroupCosts
) -> MicroBatch:
    """Make the answer of samples instead of counts; infinitely slow if a solver's rounding broke a rule."""
    used = np.flatnonzero(held.any(axis=0))[::-1]
    group_of = np.full(len(lengths), -1, dtype=np.int64)
    # Samples count as the shortest of the program's lengths (falling) that holds them.
    item = np.searchsorted(-longest, -np.asarray(lengths, dtype=np.int64), side="right") - 1
    if (held.sum(axis=1) != np.bincount(item, minlength=len(longest))).any():
        return MicroBatch(kinds[used], group_of, np.inf)
    groups = np.tile(np.arange(len(used)), len(longest))
    group_of[np.argsort(item, kind="stable")] = np.repeat(groups, held[:, used].ravel())
    tokens, work = tokens_and_work(group_of, lengths, len(used))
    if (tokens > costs.capacity[kinds[used]]).any():
        return MicroBatch(kinds[used], group_of, np.inf)
    return MicroBatch(kinds[used], group_of, float(costs.seconds(kinds[used], work, tokens).max()))


class Buckets(NamedTuple):
    """At most q buckets of similar lengths, longest first; rounding adds no fewer tokens in any others."""

    longest: Int64Array
    """int64[b]: the length that each sample of the bucket counts as."""
    samples: Int64Array
    """int64[b]: how many samples the bucket has."""


def make_buckets(lengths: NDArray[np.integer], num_buckets: int) -> Buckets:
    """Divide the lengths (int[n]) into at most `num_buckets` buckets; fewer if there are fewer distinct lengths.

    >>> make_buckets(np.array([1, 2, 9, 9, 10]), 2)
    Buckets(longest=array([10,  2]), samples=array([3, 2]))
    """
    length, number = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    if not len(length):
        return Buckets(length, number)
    count_to = np.concatenate([[0], np.cumsum(number)])
    tokens_to = np.concatenate([[0], np.cumsum(number * length)])
    cuts = np.zeros((min(num_buckets, len(length)), len(length) + 1), dtype=np.int64)
    _cut(length, count_to, tokens_to, cuts)
    stops = [len(length)]
    for cut in cuts[:0:-1]:
        stops.append(int(cut[stops[-1]]))
    stop = np.array(stops)
    return Buckets(length[stop - 1], -np.diff(count_to[stop], append=0))


@njit(cache=True)
def _cut(length: Int64Array, count_to: Int64Array, tokens_to: Int64Array, cuts: Int64Array) -> None:
    """Write to `cuts[q][k]` how many of the k shortest distinct lengths are in the first q buckets of q + 1.

    Needs at least as many lengths as buckets.
    """
    num = len(length)
    error = np.zeros(num + 1, dtype=np.int64)
    for k in range(1, num + 1):
        error[k] = length[k - 1] * count_to[k] - tokens_to[k]
    for q in range(1, len(cuts)):
        for k in range(num, q, -1):  # So the errors below k are still those of q buckets.
            best = np.int64(-1)
            for j in range(q, k):
                added = error[j] + length[k - 1] * (count_to[k] - count_to[j]) - (tokens_to[k] - tokens_to[j])
                if best < 0 or added < best:
                    best, cuts[q, k] = added, j
            error[k] = best


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
    falling: Int32Array, lengths: Int32Array, costs: GroupCosts, num_gpus: int, trials: int, solve: Solve, most: float
) -> tuple[list[tuple[Int32Array, MicroBatch]], float]:
    """Solve one batch (int32[n], samples by falling length); return its micro-batches, and their seconds.

    Args:
        most: seconds; what takes as long is not looked for, and then they are infinite.
    """
    tokens = lengths[falling].astype(np.int64)
    fits = int((costs.capacity * (num_gpus // costs.gpus)).max())
    least = max(1, -(-int(tokens.sum()) // fits))
    best: list[tuple[Int32Array, MicroBatch]] = []
    fastest, has_fitted = most, False
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

    Return the places of the cuts, int64[parts - 1]. The paper's dynamic program, by bisection. O(parts log n log sum).

    >>> cut_evenly(np.array([5, 4, 3, 3]), 2).tolist()
    [2]
    """
    total = int(tokens.sum())
    least = bisect_left(
        range(total),
        True,
        lo=max(int(tokens.max()), -(-total // num_parts)),
        key=lambda most: len(cut_steps(tokens, most)) <= num_parts + 1,
    )
    return cut_steps(tokens, least)[1:-1]
