"""One micro-batch by integer programming: FlexSP (arXiv 2412.01523), section 4.1, through PuLP.

Over virtual groups p, floor(G / d) of each degree d, and samples of equal length (or one bucket) k: minimise Z with
`time_p <= Z`, `tokens_p <= capacity_p m_p`, each sample in one group, and `sum d_p m_p <= G`, where m_p says whether a
group is used, and A_kp how many samples of k it holds.

Ours, besides: groups of one degree are interchangeable, so they are used in order, and the longest samples stay in the
first ones; no sample is in a group that takes longer with it alone than the search of `micro_batch`, from whose answer
the solver starts; and used GPUs take time together, `sum d_p time_p <= G Z`, which tightens the relaxation.

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

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.ilp.solver import add_variable, solve_program
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, least_seconds, solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import DegreeCosts

_TOLERANCE = 1e-6
"""Solvers let constraints be violated by this much, so their bounds are lowered by as much."""


class ExactMicroBatch(NamedTuple):
    """The best answer found, and a proved bound."""

    micro_batch: MicroBatch
    bound: float
    """Seconds: no groups are faster. Proved for the samples as they are, even if the program used buckets."""
    is_optimal: bool
    """Whether no groups are faster, up to a few millionths."""


def solve_exactly(
    lengths: NDArray[np.integer],
    costs: DegreeCosts,
    num_gpus: int,
    *,
    num_buckets: int | None = None,
    time_limit: float = 30.0,
) -> ExactMicroBatch:
    """The fastest groups for the samples (int[n], tokens), or the best ones found within the time limit.

    Args:
        num_buckets: count samples at the longest length of their bucket (the paper has 16), to tell fewer apart; the
            answer is then no longer exact. None: exact lengths.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.

    Raises:
        RunError: no solver is installed.
    """
    costs = costs.up_to(num_gpus)
    falling = -np.sort(-np.asarray(lengths, dtype=np.int64))
    bound = float(least_seconds(falling, *costs.arrays, num_gpus)) if len(falling) else 0
    start = solve_micro_batch(lengths, costs, num_gpus)
    if bound == np.inf or start.seconds <= bound * (1 + _TOLERANCE):
        return ExactMicroBatch(start, bound, True)
    buckets = make_buckets(lengths, len(falling) if num_buckets is None else num_buckets)
    program = _Program(
        buckets.longest[::-1].astype(np.int64), buckets.samples[::-1], costs, num_gpus, bound, start.seconds
    )
    if num_buckets is None and np.isfinite(start.seconds):
        program.start_from(start, lengths)
    found, proved, is_solved = program.solve(time_limit, uses_start=num_buckets is None and np.isfinite(start.seconds))
    best = start
    if found is not None:
        answer = _assign(found, program.kinds, lengths, program.lengths, costs)
        best = answer if answer.seconds < start.seconds else start
    if num_buckets is None:
        bound = min(best.seconds, max(bound, proved * (1 - 2 * _TOLERANCE)))
    is_exact = num_buckets is None and is_solved
    return ExactMicroBatch(best, bound, bool(is_exact or best.seconds <= bound * (1 + 4 * _TOLERANCE)))


class _Program:
    """The integer program for k lengths, falling, with their counts."""

    def __init__(
        self, lengths: Int64Array, counts: Int64Array, costs: DegreeCosts, num_gpus: int, bound: float, limit: float
    ) -> None:
        import pulp

        self.lengths, self.counts, self.num_gpus = lengths, counts, num_gpus
        numbers = np.minimum(num_gpus // costs.degrees, counts.sum())
        self.kinds = np.repeat(np.arange(len(costs)), numbers)
        place = np.concatenate([np.arange(number) for number in numbers])
        self.scale = limit if np.isfinite(limit) else bound
        length = lengths[:, None].astype(np.float64)
        quadratic, linear, constant = costs.rates[:, self.kinds] / self.scale
        seconds = (quadratic * length + linear) * length
        fits = length <= costs.capacity[self.kinds]
        if np.isfinite(limit):
            fits &= seconds + constant <= 1 + _TOLERANCE
        # Groups of a degree are numbered by their longest samples: the j-th holds none of the j longest.
        fits &= np.cumsum(counts)[:, None] > place

        self.problem: Any = pulp.LpProblem("flexsp", pulp.LpMinimize)
        upper = 1.0 if np.isfinite(limit) else None
        slowest = add_variable(self.problem, "z", lowBound=bound / self.scale * (1 - _TOLERANCE), upBound=upper)
        self.is_used = [add_variable(self.problem, f"m{p:04d}", cat=pulp.LpBinary) for p in range(len(self.kinds))]
        self.held = {
            (k, p): add_variable(
                self.problem, f"a{k:04d}_{p:04d}", lowBound=0, upBound=int(counts[k]), cat=pulp.LpInteger
            )
            for k, p in zip(*(index.tolist() for index in np.nonzero(fits)), strict=True)
        }
        self.slowest = slowest
        self.problem += slowest
        for k in range(len(lengths)):
            self.problem += pulp.lpSum(self.held[k, p] for p in np.flatnonzero(fits[k]).tolist()) == int(counts[k])
        together = {slowest: -float(num_gpus)}
        for p, kind in enumerate(self.kinds.tolist()):
            own = np.flatnonzero(fits[:, p]).tolist()
            time = {self.held[k, p]: float(seconds[k, p]) for k in own} | {self.is_used[p]: float(constant[p])}
            share = {self.held[k, p]: int(lengths[k]) / int(costs.capacity[kind]) for k in own}
            self.problem += pulp.LpAffineExpression(time | {slowest: -1}) <= 0
            self.problem += pulp.LpAffineExpression(share | {self.is_used[p]: -1}) <= 0
            if p and self.kinds[p - 1] == kind:
                self.problem += pulp.LpAffineExpression({self.is_used[p]: 1, self.is_used[p - 1]: -1}) <= 0
            degree = int(costs.degrees[kind])
            together |= {variable: degree * value for variable, value in time.items()}
        self.problem += pulp.LpAffineExpression(together) <= 0
        gpus = {used: int(costs.degrees[kind]) for used, kind in zip(self.is_used, self.kinds.tolist(), strict=True)}
        self.problem += pulp.LpAffineExpression(gpus) <= num_gpus

    def start_from(self, start: MicroBatch, lengths: NDArray[np.integer]) -> None:
        """Set the variables to an answer with these lengths."""
        held = np.zeros((len(self.lengths), len(start.kinds)), dtype=np.int64)
        np.add.at(held, (np.searchsorted(-self.lengths, -np.asarray(lengths)), start.group_of), 1)
        # Within a degree, by the longest sample: the order that the program demands.
        order = np.lexsort(((held > 0).argmax(axis=0), start.kinds))
        self.slowest.setInitialValue(start.seconds / self.scale)
        for variable in [*self.is_used, *self.held.values()]:
            variable.setInitialValue(0)
        for kind in range(self.kinds.max() + 1):
            for p, group in enumerate(order[start.kinds[order] == kind], int(np.searchsorted(self.kinds, kind))):
                self.is_used[p].setInitialValue(1)
                for k in np.flatnonzero(held[:, group]).tolist():
                    self.held[k, p].setInitialValue(int(held[k, group]))

    def solve(self, time_limit: float, uses_start: bool) -> tuple[Int64Array | None, float, bool]:
        """`(samples int64[k, p] of each length in each group, proved bound in seconds, whether solved)`."""
        has_answer, proved, is_solved = solve_program(self.problem, self.slowest, time_limit, uses_start=uses_start)
        if not has_answer:
            return None, proved * self.scale, is_solved
        found = np.zeros((len(self.lengths), len(self.kinds)), dtype=np.int64)
        for (k, p), variable in self.held.items():
            found[k, p] = round(variable.varValue or 0)
        return found, proved * self.scale, is_solved


def _assign(
    held: Int64Array, kinds: Int64Array, lengths: NDArray[np.integer], longest: Int64Array, costs: DegreeCosts
) -> MicroBatch:
    """The answer with samples instead of counts; infinitely slow if a solver's rounding broke a rule."""
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
    length = np.asarray(lengths, dtype=np.int64)
    tokens, work = np.zeros((2, len(used)), dtype=np.int64)
    np.add.at(tokens, group_of, length)
    np.add.at(work, group_of, length * length)
    if (tokens > costs.capacity[kinds[used]]).any():
        return MicroBatch(kinds[used], group_of, np.inf)
    return MicroBatch(kinds[used], group_of, float(costs.seconds(kinds[used], work, tokens).max()))


class Buckets(NamedTuple):
    """At most q buckets of similar lengths, shortest first."""

    longest: Int32Array
    """int32[b]: the length that each sample of the bucket counts as."""
    samples: Int64Array
    """int64[b]: how many samples the bucket has."""
    error: int
    """Tokens that rounding adds, summed over the samples; no other q buckets add fewer."""


def make_buckets(lengths: NDArray[np.integer], num_buckets: int) -> Buckets:
    """Divide the lengths (int[n]) into at most `num_buckets` buckets; fewer if there are fewer distinct lengths.

    `searchsorted(longest, length)` is the bucket of a length.

    >>> make_buckets(np.array([1, 2, 9, 9, 10]), 2)
    Buckets(longest=array([ 2, 10], dtype=int32), samples=array([2, 3]), error=3)

    Raises:
        ValueError: `num_buckets` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"the number of buckets must be at least 1, got {num_buckets}")
    length, number = np.unique(lengths, return_counts=True)
    num_buckets = min(num_buckets, len(length))
    count_to = np.concatenate([[0], np.cumsum(number, dtype=np.int64)])
    tokens_to = np.concatenate([[0], np.cumsum(number * length.astype(np.int64))])
    if not num_buckets:
        return Buckets(length.astype(np.int32), number.astype(np.int64), 0)
    cuts = np.zeros((num_buckets, len(length) + 1), dtype=np.int64)
    error = _cut(length.astype(np.int64), count_to, tokens_to, cuts)
    ends = [len(length)]
    for cut in cuts[:0:-1]:
        ends.append(int(cut[ends[-1]]))
    stop = np.array(ends[::-1])
    return Buckets(length[stop - 1].astype(np.int32), np.diff(count_to[stop], prepend=0), int(error))


@njit(cache=True)
def _cut(length: Int64Array, count_to: Int64Array, tokens_to: Int64Array, cuts: Int64Array) -> int:
    """Write to `cuts[q][k]` how many of the k shortest distinct lengths are in the first q buckets of q + 1.

    Returns the least error. Needs at least as many lengths as buckets.
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
    return int(error[num])


@njit(cache=True, no_cpython_wrapper=True)
def _put(row: Int64Array, first: int, last: int, low: int, high: int) -> None:
    """`row[:] = first, last, low, high`, which takes seconds to compile, see `timed_dealing.copy_to`."""
    row[0], row[1], row[2], row[3] = first, last, low, high
