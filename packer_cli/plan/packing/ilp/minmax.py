"""Deal samples to a fixed number of packs so that the greatest work of a pack is least: the exact integer program.

Source: WLB-LLM, arXiv 2503.17924, eq. 1: minimise the greatest work of a pack (sum of s^2), each sample in one pack,
each pack within its capacity. Price: exponential; samples * packs binary variables. Use it on windows of about 100
samples and a handful of packs, to see how far a heuristic is from the optimum. Do not use it in production:
longest-first dealing is usually within a few thousandths of the optimum, and the gain rarely pays for the program's
time.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.cost import tokens_and_work
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program


def min_max_work(
    lengths: Int32Array, start: Int64Array, num_packs: int, capacity: int, time_limit: float = 60.0
) -> Int64Array:
    """Find the pack (int64[n]) of each sample, with the least greatest work, or the best so far at the time limit.

    Packs may be empty, for instance if there are fewer samples than packs.

    Args:
        lengths: int32[n], falling, each 1 .. capacity; about 100.
        start: int64[n], the pack of each sample in some answer, which stands where none is better.
        num_packs: packs to fill, at least 1.
        capacity: most tokens of a pack.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.
    """
    import pulp

    work = lengths.astype(np.int64) ** 2
    best = int(tokens_and_work(start, lengths, num_packs)[1].max())
    # Some pack does the mean, one has the longest sample, and two of any num_packs + 1 samples share one.
    pair = work[num_packs - 1 : num_packs + 1].sum() if len(work) > num_packs else 0
    bound = max(-(-int(work.sum()) // num_packs), int(work.max(initial=0)), int(pair))
    if best <= bound:
        return start
    # A sample of 128K tokens has a work of 1.7e10, which solver tolerances are not made for; scale to at most 1.
    scale = int(work[0])
    problem = pulp.LpProblem("work", pulp.LpMinimize)
    greatest = add_variable(problem, "greatest", lowBound=bound / scale * (1 - TOLERANCE), upBound=best / scale)
    problem += greatest
    # Packs are interchangeable: the longest sample is in pack 0, the next in pack 0 or 1, and so on.
    held = [
        [add_variable(problem, f"x{i:05d}_{j:05d}", cat=pulp.LpBinary) for j in range(min(i + 1, num_packs))]
        for i in range(len(lengths))
    ]
    for of_sample in held:
        problem += pulp.lpSum(of_sample) == 1
    for j in range(num_packs):
        column = {i: held[i][j] for i in range(j, len(lengths))}
        share = {variable: int(lengths[i]) / capacity for i, variable in column.items()}
        load = {variable: int(work[i]) / scale for i, variable in column.items()}
        problem += pulp.LpAffineExpression(share) <= 1
        problem += pulp.LpAffineExpression({**load, greatest: -1}) <= 0
    if not solve_program(problem, time_limit):
        return start
    found = np.array([np.argmax([variable.varValue or 0 for variable in of_sample]) for of_sample in held])
    tokens, of_packs = tokens_and_work(found, lengths, num_packs)
    return found if tokens.max() <= capacity and of_packs.max() < best else start
