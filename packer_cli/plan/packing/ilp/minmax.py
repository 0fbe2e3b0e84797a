"""Deal samples to a fixed number of packs so that the greatest work of a pack is least: the exact integer program.

Source: WLB-LLM, arXiv 2503.17924, eq. 1: minimise the greatest work of a pack (sum of s^2), each sample in one pack,
each pack within its capacity. Price: exponential; samples * packs binary variables. Use it on windows of about 100
samples and a handful of packs, to see how far a heuristic is from the optimum. Do not use it in production:
longest-first dealing is usually within a few thousandths of the optimum, and the gain rarely pays for the program's
time.
"""

from __future__ import annotations

import time

import numpy as np

from packer_cli.plan.core.cost import tokens_and_work
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.kernels.balance import spread
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program


def min_max_work(
    lengths: Int32Array, start: Int64Array, num_packs: int, capacity: int, time_limit: float = 60.0
) -> Int64Array:
    """The pack (int64[n]) of each sample, with the least greatest work, or the best so far at the time limit.

    Packs may be empty, for instance if there are fewer samples than packs.

    Args:
        lengths: int32[n], each 1 .. capacity; about 100.
        start: int64[n], the pack of each sample in some answer, for where longest-first dealing finds none.
        num_packs: packs to fill, at least 1.
        capacity: most tokens of a pack.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.
    """
    import pulp

    deadline = time.monotonic() + time_limit
    # By decreasing length from here on.
    order = argsort_descending(lengths)
    sizes = lengths[order].astype(np.int64)
    work = sizes * sizes
    bound = _simple_bound(work, num_packs)
    row_of = spread(sizes.astype(np.int32), as_ids(np.arange(len(sizes))), capacity, num_packs)
    start = start[order] if (row_of < 0).any() else row_of.astype(np.int64)
    best = int(np.bincount(start, weights=work.astype(np.float64), minlength=1).max()) if len(work) else 0
    answer = by_longest(start)
    if best > bound and time.monotonic() < deadline:
        # A sample of 128K tokens has a work of 1.7e10, which solver tolerances are not made for; scale to at most 1.
        scale = int(work[0])
        problem = pulp.LpProblem("work", pulp.LpMinimize)
        greatest = add_variable(problem, "greatest", lowBound=bound / scale * (1 - TOLERANCE), upBound=best / scale)
        # Packs are interchangeable: the longest sample is in pack 0, the next in pack 0 or 1, and so on.
        held = {
            (i, j): add_variable(problem, f"x{i:05d}_{j:05d}", cat=pulp.LpBinary)
            for i in range(len(sizes))
            for j in range(min(i + 1, num_packs))
        }
        problem += greatest
        for i in range(len(sizes)):
            problem += pulp.lpSum(held[i, j] for j in range(min(i + 1, num_packs))) == 1
        for j in range(num_packs):
            column = range(j, len(sizes))
            problem += pulp.LpAffineExpression({held[i, j]: int(sizes[i]) / capacity for i in column}) <= 1
            load = {held[i, j]: int(work[i]) / scale for i in column}
            problem += pulp.LpAffineExpression({**load, greatest: -1}) <= 0
        greatest.setInitialValue(best / scale)
        for (i, j), variable in held.items():
            variable.setInitialValue(int(answer[i] == j))
        if solve_program(problem, deadline - time.monotonic(), uses_start=True):
            found = np.array(
                [max(range(min(i + 1, num_packs)), key=lambda j: held[i, j].varValue or 0) for i in range(len(sizes))],
                dtype=np.int64,
            )
            tokens, of_packs = tokens_and_work(found, sizes, num_packs)
            if tokens.max() <= capacity and of_packs.max() < best:
                answer = found
    pack_of = np.empty(len(order), dtype=np.int64)
    pack_of[order] = answer
    return pack_of


def _simple_bound(work: Int64Array, num_packs: int) -> int:
    """The greatest of: the mean, the longest sample, and a pair, as two of any num_packs + 1 samples share a pack."""
    if len(work) == 0:
        return 0
    bound = max(-(-int(work.sum()) // num_packs), int(work[0]))
    if len(work) > num_packs:
        bound = max(bound, int(work[num_packs - 1] + work[num_packs]))
    return bound


def by_longest(pack_of: Int64Array) -> Int64Array:
    """The same packs, numbered by decreasing longest sample, as the program requires."""
    _, first, number = np.unique(pack_of, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]
