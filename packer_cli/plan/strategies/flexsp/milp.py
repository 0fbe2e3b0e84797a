"""One micro-batch by integer programming: FlexSP (arXiv 2412.01523), section 4.1, through PuLP.

Over virtual groups p, floor(G / d) of each degree d, and samples of equal length (or one bucket) k: minimise Z with
`time_p <= Z`, `tokens_p <= capacity_p m_p`, each sample in one group, and `sum d_p m_p <= G`, where m_p says whether a
group is used, and A_kp how many samples of k it holds.

Ours, besides: groups of one degree are interchangeable, so they are used in order, and the longest samples stay in the
first ones; no sample is in a group that takes longer with it alone than the search of `micro_batch`, from whose answer
the solver starts; and used GPUs take time together, `sum d_p time_p <= G Z`, which tightens the relaxation.

Price: exponential. Up to about 20 samples or buckets on 16 GPUs are solved in seconds; larger ones end with the best
answer at the time limit. `micro_batch` is within a few per cent in milliseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.ilp.solver import add_variable, dual_bound, make_solver
from packer_cli.plan.strategies.flexsp.buckets import make_buckets
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, least_seconds, solve_micro_batch

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
        import pulp

        self.problem.solve(make_solver(time_limit, uses_start=uses_start))
        is_solved = self.problem.sol_status == pulp.LpSolutionOptimal
        found = None
        if is_solved or self.problem.sol_status == pulp.LpSolutionIntegerFeasible:
            found = np.zeros((len(self.lengths), len(self.kinds)), dtype=np.int64)
            for (k, p), variable in self.held.items():
                found[k, p] = round(variable.varValue or 0)
        proved = dual_bound(self.problem)
        if proved == float("-inf") and is_solved:
            proved = float(self.slowest.varValue)
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
