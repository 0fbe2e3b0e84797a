"""The linear program of cutting stock, by column generation.

A column is a pattern: how many samples of each class one pack holds. The master chooses how often each pattern is
used, so that all samples are covered by the fewest packs; its dual values price new patterns (Gilmore and Gomory
1961). For any dual values y >= 0, sum(demand * y) / (the greatest value of a pack) is a bound (Farley 1990), so a run
that is stopped early still proves one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.packing.ilp.knapsack import best_patterns
from packer_cli.plan.packing.ilp.solver import add_variable, make_solver
from packer_cli.plan.types import Int32Array, Int64Array

Patterns = Int32Array
"""int32[k, m]: k patterns over m classes."""

UNIT = 1 << 36
"""Dual values as integers: the bound is then a quotient of integers, and no rounding error can lift it. A pack of
2^20 samples of value 1 still fits 63 bits."""
_NEW_AT_ONCE = 60
"""Patterns added a round: more make fewer rounds, and a larger program."""


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The linear program, as far as it was solved."""

    patterns: Patterns
    use: NDArray[np.float64]
    """float64[k]: how often each pattern is used."""
    value: float
    """sum(use)"""
    bound: int
    """No packing of the demands needs fewer packs; proved also where the run was stopped."""
    worth: Int64Array
    """int64[m]: the dual values that prove it, as integers."""
    most_worth: int
    """Greatest worth of a pack."""


def start_patterns(sizes: Int64Array, demands: Int64Array, capacity: int) -> Patterns:
    """One pattern for each class, with as many copies as fit: every demand can be covered. m patterns."""
    copies = np.minimum(capacity // np.maximum(1, sizes), demands)
    return np.diag(copies).astype(np.int32)


def generate(
    sizes: Int64Array, demands: Int64Array, capacity: int, patterns: Patterns, deadline: float
) -> Relaxation | None:
    """Add patterns until none lowers the number of packs, the rounded bound is met, or the deadline has come.

    Args:
        sizes, demands: int64[m]; sizes may be 0, demands are at least 1.
        patterns: patterns to start with; together they cover every class.
        deadline: in `time.monotonic()` seconds.

    Returns:
        None where the time did not suffice for one program.
    """
    # What rounding made nothing of needs no room, and gives no bound.
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
        found = Relaxation(patterns=patterns, use=use, value=value, bound=rounded, worth=proof, most_worth=most_worth)
        is_better = worth > UNIT * (1 + 1e-7)
        if not is_better.any() or value <= rounded + 1e-6 or time.monotonic() >= deadline:
            return found
        ranked = np.argsort(-worth, kind="stable")[: int(is_better.sum())]
        _, first = np.unique(candidates[ranked], axis=0, return_index=True)
        new = candidates[ranked[np.sort(first)][:_NEW_AT_ONCE]]
        patterns = np.concatenate([_useful(patterns, use, values), new])


def total_worth(demands: Int64Array, values: Int64Array) -> int:
    """sum(demand * value), exact: it may exceed 63 bits."""
    return sum(int(d) * int(v) for d, v in zip(demands, values, strict=True))


def _useful(patterns: Patterns, use: NDArray[np.float64], values: Int64Array) -> Patterns:
    """Without the patterns that are least likely to come back, once there are many: by reduced cost."""
    most = 6 * patterns.shape[1] + 500
    if len(patterns) <= most:
        return patterns
    cost = UNIT - patterns @ values
    cost[use > 0] = -UNIT
    return patterns[np.sort(np.argsort(cost, kind="stable")[: most // 2])]


def _program(patterns: NDArray[Any], demands: NDArray[Any], category: str) -> tuple[Any, list[Any], list[Any]]:
    """The master as a PuLP program: `(problem, a variable for each pattern, a row for each class)`."""
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
    patterns: NDArray[Any], demands: NDArray[Any], deadline: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Use of each pattern and dual value of each row; None where time ran out. Numbers may be whole or not."""
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
    """Cover the demands in at most `most` packs of the patterns.

    Returns:
        `(use int64[k] or None, is_impossible)`; neither where the time did not suffice.
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
    # The solver's word is not taken: at a time limit it may call a broken solution feasible.
    is_good = bool((use @ patterns >= demands).all() and use.sum() <= most)
    return (use if is_good else None), False
