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

import numpy as np

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array
from packer_cli.plan.packing.ilp.solver import add_variable, make_solver

_UNIT = 1 << 36
"""A dual value of 1. Dual values are integers in units of 2^-36, so that no rounding error can raise the bound, a
quotient of two integers. A pack of 2^20 samples of value 1 still fits 63 bits."""
_NEW_AT_ONCE = 60
"""Most patterns added per round: with more, there are fewer rounds and the program is larger."""
_SAND = 16
"""Samples of at most capacity / _SAND tokens are sand."""
_MOST_STATES = 1 << 26
"""Most passes * capacity of one knapsack: its bytes, and about its nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The linear program's solution, or the best one at the deadline."""

    patterns: Int64Array
    """int64[k, m]: k patterns over m classes."""
    use: Float64Array
    """float64[k]: how often each pattern is used."""
    bound: int
    """The packs that every packing of the demands needs at least, even if the run was stopped."""


def generate_columns(
    sizes: Int64Array, demands: Int64Array, capacity: int, patterns: Int64Array, deadline: float
) -> Relaxation | None:
    """Add patterns until none lowers the number of packs, the value meets the rounded bound, or the deadline passes.

    Args:
        sizes, demands: int64[m]; sizes are 1 .. capacity.
        patterns: int64[k, m], patterns to begin with, besides one for each class.
        deadline: in `time.monotonic()` seconds.

    Returns:
        None if not even one program was solved in time.
    """
    limits = np.minimum(capacity // sizes, demands)
    patterns = np.unique(np.concatenate([np.diag(limits), np.minimum(patterns, demands)]), axis=0)
    bound = 0
    found: Relaxation | None = None
    while (solved := _solve_master(patterns, demands, deadline)) is not None:
        use, duals = solved
        values = np.floor(np.clip(duals, 0, 1) * _UNIT).astype(np.int64)
        worth, candidates = best_patterns(sizes, values, limits, capacity)
        # In Python's integers, because the sum may exceed 63 bits.
        total = sum(d * v for d, v in zip(demands.tolist(), values.tolist(), strict=True))
        bound = max(bound, -(-total // max(1, int(worth[0]))))
        found = Relaxation(patterns=patterns, use=use, bound=bound)
        num_better = int((worth > _UNIT * (1 + 1e-7)).sum())
        if not num_better or use.sum() <= bound + 1e-6 or time.monotonic() >= deadline:
            break
        best = np.argsort(-worth, kind="stable")[: min(num_better, _NEW_AT_ONCE)]
        patterns = np.concatenate([patterns, np.unique(candidates[best], axis=0)])
    return found


def _solve_master(
    patterns: Int64Array, demands: Int64Array, deadline: float
) -> tuple[Float64Array, Float64Array] | None:
    """Solve the linear program; return `(use of each pattern, dual value of each class)`; None if time ran out."""
    import pulp

    problem = pulp.LpProblem("packs", pulp.LpMinimize)
    # PuLP sorts variables by name.
    variables = [add_variable(problem, f"x{k:07d}", lowBound=0) for k in range(len(patterns))]
    problem += pulp.LpAffineExpression(dict.fromkeys(variables, 1))
    rows = {}
    for i in np.flatnonzero(demands).tolist():
        row = {variables[k]: patterns[k, i].item() for k in np.flatnonzero(patterns[:, i])}
        rows[i] = pulp.LpConstraint(pulp.LpAffineExpression(row), pulp.LpConstraintGE, f"row{i}", demands[i].item())
        problem += rows[i]
    problem.solve(make_solver(deadline - time.monotonic()))
    if problem.sol_status != pulp.LpSolutionOptimal:
        return None
    duals = np.zeros(len(demands))
    duals[list(rows)] = [row.pi for row in rows.values()]
    return np.maximum(0, [variable.varValue for variable in variables]), duals


def best_patterns(
    sizes: Int64Array, values: Int64Array, limits: Int64Array, capacity: int
) -> tuple[Int64Array, Int64Array]:
    """Find the most valuable pack, and for each class a valuable pack with a sample of the class, if one may hold it.

    A bounded knapsack by dynamic programming over the capacity (Martello and Toth 1990, chapter 3). Price:
    O(passes * capacity) time, and as many bytes; a class takes a pass for each power of two in its limit. Values are
    integers, so that a bound based on the greatest value is exact.

    Args:
        sizes, values: int64[m], of one sample.
        limits: int64[m], most samples of each class in a pack; they fit it.
        capacity: greatest total size of a pack.

    Returns:
        `(value int64[m + 1], pattern int64[m + 1, m])`: row 0 is the most valuable pack, row i + 1 that of class i.
    """
    powers = 1 << np.arange(int(limits.max()).bit_length())
    parts = np.clip(limits[:, None] - (powers - 1), 0, powers)
    item, power = np.nonzero(parts * (values[:, None] > 0))
    copies = parts[item, power]
    took = np.zeros((len(item), capacity + 1), dtype=np.bool_)
    best = np.zeros(capacity + 1, dtype=np.int64)
    for row, size, gain in zip(took, sizes[item] * copies, values[item] * copies, strict=True):
        value = best[:-size] + gain
        np.greater(value, best[size:], out=row[size:])
        np.maximum(value, best[size:], out=best[size:])

    every = np.arange(len(sizes))
    room = capacity - np.append(0, sizes)
    worth = best[room]
    patterns = np.zeros((len(sizes) + 1, len(sizes)), dtype=np.int64)
    for row, i, count in zip(took[::-1], item[::-1], copies[::-1], strict=True):
        taken = row[room] * count
        patterns[:, i] += taken
        room -= taken * sizes[i]
    # If all samples of the class are in the pack already, it stays as it is.
    fits = patterns[every + 1, every] < limits
    patterns[every + 1, every] += fits
    worth[1:] += fits * values
    return worth, patterns


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


def make_classes(lengths: Int32Array, capacity: int, max_lengths: int) -> Classes:
    """Make at most `max_lengths` classes of the stones among `lengths` (int32[n], 1 .. capacity). O(n + capacity)."""
    counts = np.bincount(lengths)
    values = np.flatnonzero(counts)[::-1]
    if len(values) > max_lengths:
        values = values[values > capacity // _SAND]
    if len(values) == 0:
        return Classes(up=values, down=values, counts=values, capacity=capacity)
    # Equally many different lengths in each class: rare ones are far apart, and so keep their own.
    first = np.arange(0, len(values), -(-len(values) // max_lengths))
    longest, shortest = values[first], values[np.append(first[1:], len(values)) - 1]
    counts = np.add.reduceat(counts[values], first)
    # Dividing by a common divisor is exact; beyond that, lengths are rounded only if the knapsack would be too large.
    grain = int(np.gcd.reduce(values))
    passes = (1 + np.log2(np.minimum(counts, capacity // longest))).sum()
    grain *= max(1, int(np.ceil(capacity // grain * passes / _MOST_STATES)))
    room = capacity // grain
    # Rounding up must not push a sample of nearly the whole capacity over it.
    up = np.minimum(-(-longest // grain), room)
    return Classes(up=up, down=shortest // grain, counts=counts, capacity=room)


def lp_lower_bound(lengths: Int32Array, capacity: int, time_limit: float = 60.0, max_lengths: int = 300) -> int:
    """Bound the packs from below by cutting stock's linear program, rounded up; at least `packs_lower_bound`.

    Source: Gilmore and Gomory 1961; Farley 1990, whose bound also holds if column generation is stopped early. The
    optimum is hardly ever more than one pack above the full program's value, so the bound tells a good packing from a
    merely plausible one. With more than `max_lengths` distinct lengths, these are rounded down to the shortest of a
    class, and the bound is up to 0.2 % lower.
    Price: seconds, O(distinct lengths * capacity) a round; if samples are short against the capacity,
    `packs_lower_bound` is as good, and free.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds; less gives a valid bound that may be smaller.
        max_lengths: likewise.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + time_limit
    bound = packs_lower_bound(lengths, capacity)
    classes = make_classes(lengths, capacity, max_lengths)
    counted = np.flatnonzero(classes.down)  # A class whose size was rounded to 0 needs no room.
    if len(counted) == 0:
        return bound
    sizes, demands = classes.down[counted], classes.counts[counted]
    none = np.empty((0, len(counted)), dtype=np.int64)
    relaxed = generate_columns(sizes, demands, classes.capacity, none, deadline)
    return bound if relaxed is None else max(bound, relaxed.bound)
