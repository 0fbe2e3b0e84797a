"""Stage 2 of Hydraulis as an integer program, through PuLP: the micro-batches of one pipeline, for few samples only.

The paper solves one for each number of micro-batches; this one has all numbers at once. Price: exponential, so that
the search is limited by nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer_cli.plan.core.cost import tokens_and_work
from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts, least_pipeline_seconds
from packer_cli.plan.strategies.hydraulis.step import PipelinePlan


def solve_pipeline(
    falling: Int64Array, costs: SchemeCosts, kind: int, start: PipelinePlan, node_limit: int
) -> tuple[Int64Array, float] | None:
    """Return `(micro-batch int64[n] of each sample, seconds)`; None if no answer keeps all rules after rounding.

    Binary `x[i, j]` puts sample i into micro-batch j, of at most n; `y[j]` says whether that is used; `z` is the
    longest. Minimise T with `sum_j t[j] + (pp - 1) z <= T` and `t[j] <= z`. Seconds are counted in those of the start.

    Args:
        falling: int64[n], lengths that the scheme holds.
        kind: the pipeline's scheme.
        start: an answer to start from.
        node_limit: nodes of the search tree. No clock stops the solver, so equal inputs give equal answers.

    Raises:
        RunError: no solver is installed.
    """
    import pulp

    num, longest = len(falling), int(falling[0])
    alone = least_pipeline_seconds(costs.arrays, kind, longest * longest, longest, longest, 1)
    problem: Any = pulp.LpProblem("hydraulis", pulp.LpMinimize)
    slowest = add_variable(problem, "t", lowBound=alone / start.seconds * (1 - TOLERANCE), upBound=1)
    problem += slowest
    quadratic, linear, constant = (costs.rates[:3, kind] / start.seconds).tolist()
    waiting, enough = costs.rates[3:, kind].tolist()
    seconds = ((quadratic * falling + linear) * falling).tolist()
    capacity, total = int(costs.capacity[kind]), int(falling.sum())
    greatest = add_variable(problem, "z", lowBound=0, upBound=1)
    whole: dict[Any, float] = {greatest: waiting, slowest: -1.0}
    held: dict[tuple[int, int], Any] = {}
    is_used: list[Any] = []
    for j in range(min(max(2 * -(-total // capacity), total // int(enough)), num)):
        is_used.append(add_variable(problem, f"y{j:03d}", cat=pulp.LpBinary))
        time, share = {is_used[j]: constant}, {is_used[j]: -1.0}
        # Micro-batches are numbered by their longest samples: the j-th holds none of the j longest.
        for i in range(j, num):
            held[i, j] = add_variable(problem, f"x{i:03d}_{j:03d}", cat=pulp.LpBinary)
            time[held[i, j]] = seconds[i]
            share[held[i, j]] = int(falling[i]) / capacity
        problem += pulp.LpAffineExpression(share) <= 0
        problem += pulp.LpAffineExpression({**time, greatest: -1.0}) <= 0
        if j:
            problem += pulp.LpAffineExpression({is_used[j]: 1, is_used[j - 1]: -1}) <= 0
        whole |= time
    problem += pulp.LpAffineExpression(whole) <= 0
    for i in range(num):
        problem += pulp.lpSum(held[i, j] for j in range(len(is_used)) if j <= i) == 1

    has_answer = solve_program(problem, node_limit=node_limit)
    slot = np.full(num, -1)
    for (i, j), variable in held.items():
        if has_answer and round(variable.varValue or 0):
            slot[i] = j
    if (slot < 0).any():
        return None
    slot = np.unique(slot, return_inverse=True)[1]
    tokens, work = tokens_and_work(slot, falling, int(slot.max()) + 1)
    times = costs.seconds(kind, work, tokens)
    if (tokens > capacity).any():
        return None
    return slot, sum(times.tolist()) + waiting * float(times.max())
