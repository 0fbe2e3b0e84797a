"""The linear program of cutting stock, by column generation.

A column is a pattern: how many samples of each class one pack holds. The master problem chooses how often to use each
pattern, so that the fewest packs cover all samples; its dual values price new patterns (Gilmore and Gomory 1961). For
any dual values y >= 0, sum(demand * y) / (the greatest value of a pack) is a lower bound (Farley 1990), so a run that
is stopped early still proves one.

Column generation solves a histogram of a few hundred classes of lengths. With few distinct lengths, each is a class.
Otherwise samples up to a sixteenth of the capacity are *sand*, which best-fit puts into whatever room the others, the
*stones*, leave, and only the stones are solved. If these still have too many lengths, neighboring ones share a class.
To keep the knapsack small, sizes may be counted in units of several tokens, *grains*. The sizes of a class are rounded
up for a packing, and down for a bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.ilp.knapsack import best_patterns
from packer_cli.plan.packing.ilp.solver import add_variable, make_solver

Patterns = Int32Array
"""int32[k, m]: k patterns over m classes."""

UNIT = 1 << 36
"""A dual value of 1. Dual values are integers in units of 2^-36, so that no rounding error can raise the bound, a
quotient of two integers. A pack of 2^20 samples of value 1 still fits 63 bits."""
_NEW_AT_ONCE = 60
"""Most patterns added per round: with more, there are fewer rounds and the program is larger."""


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The linear program's solution, or the best one at the deadline."""

    patterns: Patterns
    use: NDArray[np.float64]
    """float64[k]: how often each pattern is used."""
    bound: int
    """No packing of the demands needs fewer packs; also holds if the run was stopped."""
    worth: Int64Array
    """int64[m]: the dual values that prove the bound, in units of 1 / UNIT."""
    most_worth: int
    """The greatest worth of a pack."""


def start_patterns(sizes: Int64Array, demands: Int64Array, capacity: int) -> Patterns:
    """int32[m, m]: one pattern per class, with as many copies as fit. Together they can cover any demand."""
    copies = np.minimum(capacity // np.maximum(1, sizes), demands)
    return np.diag(copies).astype(np.int32)


def generate_columns(
    sizes: Int64Array, demands: Int64Array, capacity: int, patterns: Patterns, deadline: float
) -> Relaxation | None:
    """Add patterns until none lowers the number of packs, the value meets the rounded bound, or the deadline passes.

    Args:
        sizes, demands: int64[m]; sizes may be 0, demands are at least 1.
        patterns: initial patterns; together they cover every class.
        deadline: in `time.monotonic()` seconds.

    Returns:
        None if not even one program was solved in time.
    """
    # Classes whose size was rounded to 0 need no room, and contribute nothing to the bound.
    priced = np.where(sizes > 0, demands, 0)
    bound, proof, most_worth = 0.0, np.zeros(len(demands), dtype=np.int64), 1
    found: Relaxation | None = None
    while True:
        solved = solve_master(patterns, demands, deadline)
        if solved is None:
            return found
        use, duals = solved
        values = np.floor(np.clip(duals, 0, 1) * UNIT).astype(np.int64)
        values[sizes == 0] = 0
        worth, candidates = best_patterns(np.maximum(1, sizes), values, priced, capacity)
        if worth[0] > 0:
            total = total_worth(demands, values)
            if total / int(worth[0]) > bound:
                bound, proof, most_worth = total / int(worth[0]), values, int(worth[0])
        value = float(use.sum())
        rounded = -(-total_worth(demands, proof) // most_worth)
        found = Relaxation(patterns=patterns, use=use, bound=rounded, worth=proof, most_worth=most_worth)
        is_better = worth > UNIT * (1 + 1e-7)
        if not is_better.any() or value <= rounded + 1e-6 or time.monotonic() >= deadline:
            return found
        ranked = np.argsort(-worth, kind="stable")[: int(is_better.sum())]
        _, first = np.unique(candidates[ranked], axis=0, return_index=True)
        new = candidates[ranked[np.sort(first)][:_NEW_AT_ONCE]]
        patterns = np.concatenate([_useful(patterns, use, values), new])


def total_worth(demands: Int64Array, values: Int64Array) -> int:
    """sum(demand * value), in Python integers because it may exceed 63 bits."""
    return sum(int(d) * int(v) for d, v in zip(demands, values, strict=True))


def _useful(patterns: Patterns, use: NDArray[np.float64], values: Int64Array) -> Patterns:
    """The patterns in use and those of least reduced cost; all of them while they are few."""
    most = 6 * patterns.shape[1] + 500
    if len(patterns) <= most:
        return patterns
    cost = UNIT - patterns @ values
    cost[use > 0] = -UNIT
    return patterns[np.sort(np.argsort(cost, kind="stable")[: most // 2])]


def _program(patterns: Patterns, demands: Int64Array, category: str) -> tuple[Any, list[Any], list[Any]]:
    """The master problem in PuLP: `(problem, one variable per pattern, one constraint per class)`."""
    import pulp

    problem = pulp.LpProblem("packs", pulp.LpMinimize)
    # PuLP sorts variables by name.
    names = [f"x{k:07d}" for k in range(len(patterns))]
    variables = [add_variable(problem, name, lowBound=0, cat=category) for name in names]
    problem += pulp.LpAffineExpression(dict.fromkeys(variables, 1))
    rows = []
    for i, demand in enumerate(demands):
        row = {variables[k]: patterns[k, i].item() for k in np.flatnonzero(patterns[:, i])}
        rows.append(pulp.LpConstraint(pulp.LpAffineExpression(row), pulp.LpConstraintGE, f"row{i}", demand.item()))
        problem += rows[-1]
    return problem, variables, rows


def solve_master(
    patterns: Patterns, demands: Int64Array, deadline: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """`(use of each pattern, dual value of each class)`; None if time ran out."""
    import pulp

    problem, variables, rows = _program(patterns, demands, pulp.LpContinuous)
    problem.solve(make_solver(deadline - time.monotonic()))
    if problem.sol_status != pulp.LpSolutionOptimal:
        return None
    use = np.array([variable.varValue for variable in variables], dtype=np.float64)
    return np.maximum(0, use), np.array([row.pi for row in rows], dtype=np.float64)


def solve_integer(
    patterns: Patterns, demands: Int64Array, most: int, deadline: float
) -> tuple[Int64Array | None, bool]:
    """Cover the demands by at most `most` packs of the given patterns.

    Returns:
        `(use int64[k] or None, is_impossible)`; `(None, False)` if time ran out.
    """
    import pulp

    problem, variables, _ = _program(patterns, demands, pulp.LpInteger)
    problem += pulp.lpSum(variables) <= most
    problem.solve(make_solver(deadline - time.monotonic()))
    if problem.status == pulp.LpStatusInfeasible:
        return None, True
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None, False
    use = np.array([round(variable.varValue or 0) for variable in variables], dtype=np.int64)
    # Check the solver's answer: at a time limit it may report a broken solution as feasible.
    is_good = bool((use @ patterns >= demands).all() and use.sum() <= most)
    return (use if is_good else None), False


SAND = 16
"""Samples of at most capacity / SAND tokens are sand."""
_MOST_STATES = 1 << 26
"""Most passes * capacity of one knapsack: its bytes, and about its nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The m classes of the stones, by decreasing length."""

    up: Int64Array
    """int64[m], grains: the longest length of each, rounded up; sizes for a packing."""
    down: Int64Array
    """int64[m], grains: the shortest length of each, rounded down; sizes for a bound."""
    counts: Int64Array
    """int64[m]: samples; at least 1."""
    capacity: int
    """Grains."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing was rounded, so that packings and bounds of the classes are those of the stones."""
        return bool(np.array_equal(self.up, self.down))


def make_classes(lengths: Int32Array, capacity: int, max_lengths: int) -> Classes:
    """At most `max_lengths` classes of the stones among `lengths` (int32[n], each 1 .. capacity). O(n + capacity)."""
    counts = np.bincount(lengths)
    values = np.flatnonzero(counts)[::-1]
    if len(values) > max_lengths:
        values = values[values > capacity // SAND]
    if len(values) == 0:
        return Classes(up=values, down=values, counts=values, capacity=capacity)
    # Equally many different lengths in each class: rare ones are far apart, and so keep their own.
    first = np.arange(0, len(values), -(-len(values) // max_lengths))
    longest, shortest = values[first], values[np.append(first[1:], len(values)) - 1]
    counts = np.add.reduceat(counts[values], first)
    # Dividing by a common divisor is exact; beyond that, lengths are rounded only if the knapsack would be too large.
    grain = int(np.gcd.reduce(values))
    fitting = capacity // longest
    passes = np.where(counts >= fitting, 1, 1 + np.log2(np.minimum(counts, fitting))).sum()
    grain *= max(1, int(np.ceil(capacity // grain * passes / _MOST_STATES)))
    room = capacity // grain
    # Rounding up must not push a sample of nearly the whole capacity over it.
    up = np.minimum(-(-longest // grain), room)
    return Classes(up=up, down=shortest // grain, counts=counts, capacity=room)
