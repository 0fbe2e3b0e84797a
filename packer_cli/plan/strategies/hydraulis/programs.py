"""Hydraulis's integer program of stage 2, through PuLP: exact, and for few samples only.

The paper solves one for each number of micro-batches; this decides their number, too. Price: exponential; seconds for
a dozen samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer_cli.plan.core.cost import tokens_and_work
from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.ilp.solver import add_variable, solve_program
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.step import least_step_seconds

_TOLERANCE = 1e-6
"""Solvers let constraints be violated by this much, so their bounds are lowered by as much."""


def solve_pipeline(
    lengths: Int64Array, costs: SchemeCosts, kind: int, start: Int64Array, limit: float, node_limit: int
) -> tuple[Int64Array, float] | None:
    """A faster division of a pipeline's samples into micro-batches: `(slot_of int64[n], seconds)`; None without one.

    Binary `x[i, j]` puts sample i into micro-batch j, of at most n; `y[j]` says whether that is used; Z is the seconds
    of the longest. Minimise T with `sum_j t[j] + (pp - 1) Z <= T` and `t[j] <= Z`.

    Args:
        lengths: int64[n], falling.
        kind: the pipeline's scheme.
        start: int64[n], the micro-batches of an answer, each numbered from 0, from which the solver starts.
        limit: seconds of that answer, more than those of the longest sample alone.
        node_limit: nodes of the search tree; what this cuts off is the same everywhere.

    Raises:
        RunError: no solver is installed.
    """
    import pulp

    quadratic, linear, constant = (costs.rates[:3, kind] / limit).tolist()
    waiting, capacity = float(costs.rates[3, kind]), int(costs.capacity[kind])
    seconds = ((quadratic * lengths + linear) * lengths).tolist()
    alone = float(least_step_seconds(lengths, np.array([kind]), *costs.arrays))
    problem = pulp.LpProblem("hydraulis", pulp.LpMinimize)
    whole_time = add_variable(problem, "t", lowBound=alone / limit * (1 - _TOLERANCE), upBound=1)
    problem += whole_time
    greatest = add_variable(problem, "z", lowBound=0, upBound=1)
    whole: dict[Any, float] = {greatest: waiting, whole_time: -1.0}
    held: dict[tuple[int, int], Any] = {}
    is_used: list[Any] = []
    total = int(lengths.sum())
    most = min(len(lengths), max(2 * -(-total // capacity), total // int(costs.rates[4, kind])))
    for j in range(most):
        used = add_variable(problem, f"y{j:03d}", cat=pulp.LpBinary)
        time, share = {used: constant}, {used: -1.0}
        # Micro-batches are numbered by their longest samples: the j-th holds none of the j longest.
        for i in range(j, len(lengths)):
            held[i, j] = add_variable(problem, f"x{i:03d}_{j:03d}", cat=pulp.LpBinary)
            time[held[i, j]] = seconds[i]
            share[held[i, j]] = int(lengths[i]) / capacity
        problem += pulp.LpAffineExpression(share) <= 0
        problem += pulp.LpAffineExpression({**time, greatest: -1.0}) <= 0
        if is_used:
            problem += pulp.LpAffineExpression({used: 1, is_used[-1]: -1}) <= 0
        is_used.append(used)
        whole |= time
    problem += pulp.LpAffineExpression(whole) <= 0
    for i in range(len(lengths)):
        problem += pulp.lpSum(held[i, j] for j in range(min(i + 1, most))) == 1

    _, first, slot = np.unique(start, return_index=True, return_inverse=True)
    slot = np.argsort(np.argsort(first))[slot]  # By the longest sample: the order that the program demands.
    num = int(slot.max()) + 1
    tokens, work = tokens_and_work(slot, lengths, num)
    whole_time.setInitialValue(1)
    greatest.setInitialValue(min(1.0, float(costs.seconds(kind, work, tokens).max()) / limit))
    for j, used in enumerate(is_used):
        used.setInitialValue(int(j < num))
    for (i, j), variable in held.items():
        variable.setInitialValue(int(slot[i] == j))
    if not solve_program(problem, np.inf, uses_start=True, node_limit=node_limit):
        return None
    found = np.full(len(lengths), -1, dtype=np.int64)
    for (i, j), variable in held.items():
        if round(variable.varValue or 0):
            found[i] = j
    numbers, slot = np.unique(found, return_inverse=True)
    tokens, work = tokens_and_work(slot, lengths, len(numbers))
    if numbers[0] < 0 or tokens.max() > capacity:  # A solver's rounding broke a rule.
        return None
    times = costs.seconds(kind, work, tokens)
    reached = float(times.sum() + waiting * times.max())
    return (slot, reached) if reached < limit else None
