"""One micro-batch by integer programming: FlexSP (arXiv 2412.01523), section 4.1, through PuLP.

Over virtual groups p, floor(G / d) of each degree d, and samples of equal length (or one bucket) k: minimise Z with
`time_p <= Z`, `tokens_p <= capacity_p m_p`, each sample in one group, and `sum d_p m_p <= G`, where m_p says whether a
group is used, and A_kp how many samples of k it holds.

Ours, besides: groups of one degree are interchangeable, so they are used in order, and the longest samples stay in the
first ones; no sample is in a group that takes longer with it alone than the search of `micro_batch`; and used GPUs
take time together, `sum d_p time_p <= G Z`, which tightens the relaxation.

Price: exponential. Up to about 20 samples or buckets on 16 GPUs are solved in seconds; larger ones end with the best
answer at the time limit. `micro_batch` is within a few per cent in milliseconds.

Buckets are those of the least rounding. A bucket counts each of its samples at the length of its longest,
so that an integer program need not tell them apart. With lengths s_1 <= .. <= s_K, `err[k][q] = min over j < k of
err[j][q-1] + sum over j < i <= k of (s_k - s_i)`.

The paper's recurrence takes O(K^2 Q). Here K counts distinct lengths, sums come from prefix sums, and the best cut j
never decreases with k (the cost of a bucket satisfies the quadrangle inequality), so each layer is solved by divide
and conquer. Price: O(n + Q K log K); 0.1 s for all lengths up to 128K in 16 buckets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.cost import GroupCosts, tokens_and_work
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, least_seconds, solve_micro_batch


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
    longest, counts = buckets.longest[::-1].astype(np.int64), buckets.samples[::-1]
    numbers = np.minimum(num_gpus // costs.gpus, counts.sum())
    kinds = np.repeat(np.arange(len(costs)), numbers)
    place = np.concatenate([np.arange(number) for number in numbers])
    held = _solve(longest, counts, kinds, place, costs, num_gpus, bound, start.seconds, time_limit)
    answer = start if held is None else _assign(held, kinds, lengths, longest, costs)
    return answer if answer.seconds < start.seconds else start


def _solve(
    lengths: Int64Array,
    counts: Int64Array,
    kinds: Int64Array,
    place: Int64Array,
    costs: GroupCosts,
    num_gpus: int,
    bound: float,
    limit: float,
    time_limit: float,
) -> Int64Array | None:
    """Solve the integer program: the samples of each length in each group (int64[k, p]); None without an answer.

    Args:
        lengths, counts: int64[k], falling lengths, and the samples of each.
        kinds, place: int64[p], the degree of each virtual group, and its number among those of the degree.
        bound, limit: seconds between which the answer is; `limit` may be infinite.
    """
    import pulp

    scale = limit if np.isfinite(limit) else bound
    length = lengths[:, None].astype(np.float64)
    quadratic, linear, constant = costs.rates[:3, kinds] / scale
    seconds = (quadratic * length + linear) * length
    fits = length <= costs.capacity[kinds]
    if np.isfinite(limit):
        fits &= seconds + constant <= 1 + TOLERANCE
    # Groups of a degree are numbered by their longest samples: the j-th holds none of the j longest.
    fits &= np.cumsum(counts)[:, None] > place

    problem = pulp.LpProblem("flexsp", pulp.LpMinimize)
    upper = 1.0 if np.isfinite(limit) else None
    slowest = add_variable(problem, "z", lowBound=bound / scale * (1 - TOLERANCE), upBound=upper)
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
    for k in range(len(longest)):
        members = np.flatnonzero(item == k)
        groups = np.repeat(np.arange(len(used)), held[k, used])
        if len(groups) != len(members):
            return MicroBatch(kinds[used], group_of, np.inf)
        group_of[members] = groups
    tokens, work = tokens_and_work(group_of, lengths, len(used))
    if (tokens > costs.capacity[kinds[used]]).any():
        return MicroBatch(kinds[used], group_of, np.inf)
    return MicroBatch(kinds[used], group_of, float(costs.seconds(kinds[used], work, tokens).max()))


class Buckets(NamedTuple):
    """At most q buckets of similar lengths, shortest first; rounding adds no fewer tokens in any others."""

    longest: Int32Array
    """int32[b]: the length that each sample of the bucket counts as."""
    samples: Int64Array
    """int64[b]: how many samples the bucket has."""


def make_buckets(lengths: NDArray[np.integer], num_buckets: int) -> Buckets:
    """Divide the lengths (int[n]) into at most `num_buckets` buckets; fewer if there are fewer distinct lengths.

    `searchsorted(longest, length)` is the bucket of a length.

    >>> make_buckets(np.array([1, 2, 9, 9, 10]), 2)
    Buckets(longest=array([ 2, 10], dtype=int32), samples=array([2, 3]))
    """
    length, number = np.unique(lengths, return_counts=True)
    num_buckets = min(num_buckets, len(length))
    count_to = np.concatenate([[0], np.cumsum(number, dtype=np.int64)])
    tokens_to = np.concatenate([[0], np.cumsum(number * length.astype(np.int64))])
    if not num_buckets:
        return Buckets(length.astype(np.int32), number.astype(np.int64))
    cuts = np.zeros((num_buckets, len(length) + 1), dtype=np.int64)
    _cut(length.astype(np.int64), count_to, tokens_to, cuts)
    ends = [len(length)]
    for cut in cuts[:0:-1]:
        ends.append(int(cut[ends[-1]]))
    stop = np.array(ends[::-1])
    return Buckets(length[stop - 1].astype(np.int32), np.diff(count_to[stop], prepend=0))


@njit(cache=True)
def _cut(length: Int64Array, count_to: Int64Array, tokens_to: Int64Array, cuts: Int64Array) -> None:
    """Write to `cuts[q][k]` how many of the k shortest distinct lengths are in the first q buckets of q + 1.

    Needs at least as many lengths as buckets.
    """
    num = len(length)
    before = np.zeros(num + 1, dtype=np.int64)
    for k in range(1, num + 1):
        before[k] = length[k - 1] * count_to[k] - tokens_to[k]
    error = before.copy()
    # Ranges of k that wait, each with the range of cuts: the middle k is solved, and divides both.
    waiting = np.empty((128, 4), dtype=np.int64)
    for q in range(1, len(cuts)):
        top = 1
        _put(waiting[0], q + 1, num, q, num - 1)
        while top:
            top -= 1
            first, last, low, high = waiting[top]
            k = (first + last) // 2
            best, cut = np.int64(-1), low
            for j in range(low, min(high, k - 1) + 1):
                added = before[j] + length[k - 1] * (count_to[k] - count_to[j]) - (tokens_to[k] - tokens_to[j])
                if best < 0 or added < best:
                    best, cut = added, j
            error[k], cuts[q, k] = best, cut
            if k < last:
                _put(waiting[top], k + 1, last, cut, high)
                top += 1
            if first < k:
                _put(waiting[top], first, k - 1, low, cut)
                top += 1
        before = error.copy()


@njit(cache=True, no_cpython_wrapper=True)
def _put(row: Int64Array, first: int, last: int, low: int, high: int) -> None:
    """Set `row[:] = first, last, low, high`, which takes seconds to compile, see `timed_dealing.copy_to`."""
    row[0], row[1], row[2], row[3] = first, last, low, high
