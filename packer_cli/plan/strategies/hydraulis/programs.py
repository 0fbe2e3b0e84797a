"""Hydraulis's integer programs, through PuLP: exact, and for few samples only.

For one pipeline this is the paper's stage 2, for all numbers of micro-batches at once. For several it decides both
stages at once, which the paper leaves out as too slow, and shows how far they are from the optimum. Price:
exponential; seconds for 12 samples on 3 pipelines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.ilp.solver import add_variable, solve_program
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.step import StepPlan, plan_step

_TOLERANCE = 1e-6
"""Solvers let constraints be violated by this much, so their bounds are lowered by as much."""


class ExactStep(NamedTuple):
    """The best answer that was found, and what was proved."""

    step: StepPlan
    bound: float
    """No answer takes fewer seconds."""
    is_optimal: bool
    """Whether the answer was proved the best, up to a few millionths."""


def solve_step(
    lengths: NDArray[np.integer],
    kinds: Int64Array,
    costs: SchemeCosts,
    *,
    time_limit: float = 5.0,
    node_limit: int | None = None,
) -> ExactStep:
    """Pipelines and micro-batches of the samples (int[n], tokens) at once, so that the slowest pipeline is fastest.

    Binary `x[i, p, j]` puts sample i into micro-batch j of pipeline p, of at most n; `y[p, j]` says whether that is
    used; `Z[p]` is the longest of p. Minimise T with `sum_j t[p, j] + (pp - 1) Z[p] <= T` and `t[p, j] <= Z[p]`.

    Args:
        kinds: int64[p], schemes of the pipelines.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.
        node_limit: nodes of the search tree; what this cuts off is the same everywhere.

    Raises:
        RunError: no solver is installed.
    """
    start = plan_step(lengths, kinds, costs)
    if not np.isfinite(start.seconds) or not len(lengths) or start.seconds <= start.bound * (1 + _TOLERANCE):
        return ExactStep(start, start.bound, True)
    program = _Program(np.asarray(lengths, dtype=np.int64), np.asarray(kinds), costs, start)
    found, proved, is_solved = program.solve(time_limit, node_limit)
    best = start
    if found is not None and found.seconds < start.seconds:
        best = found
    bound = min(best.seconds, max(start.bound, proved * (1 - 2 * _TOLERANCE)))
    return ExactStep(best, bound, is_solved or best.seconds <= bound * (1 + 4 * _TOLERANCE))


class _Program:
    """The program of the samples, which it orders by falling length."""

    def __init__(self, lengths: Int64Array, kinds: Int64Array, costs: SchemeCosts, start: StepPlan) -> None:
        import pulp

        self.order = np.argsort(-lengths, kind="stable")
        self.lengths, self.kinds, self.costs = lengths[self.order], kinds, costs
        self.scale = start.seconds
        num = len(lengths)
        self.problem: Any = pulp.LpProblem("hydraulis", pulp.LpMinimize)
        self.slowest = add_variable(self.problem, "t", lowBound=start.bound / self.scale * (1 - _TOLERANCE), upBound=1)
        self.problem += self.slowest
        self.held: dict[tuple[int, int, int], Any] = {}
        self.is_used: dict[tuple[int, int], Any] = {}
        self.greatest: list[Any] = []
        of_sample: list[list[Any]] = [[] for _ in range(num)]
        for p, kind in enumerate(kinds.tolist()):
            quadratic, linear, constant = (costs.rates[:3, kind] / self.scale).tolist()
            waiting = float(costs.rates[3, kind])
            seconds = ((quadratic * self.lengths + linear) * self.lengths).tolist()
            capacity = int(costs.capacity[kind])
            fits = self.lengths <= capacity
            greatest = add_variable(self.problem, f"z{p:03d}", lowBound=0, upBound=1)
            self.greatest.append(greatest)
            whole: dict[Any, float] = {greatest: waiting, self.slowest: -1.0}
            total = int(self.lengths[fits].sum())
            most = max(2 * -(-total // capacity), total // int(costs.rates[4, kind]))
            for j in range(min(most, int(fits.sum()))):
                used = self.is_used[p, j] = add_variable(self.problem, f"y{p:03d}_{j:03d}", cat=pulp.LpBinary)
                time, share = {used: constant}, {used: -1.0}
                # Micro-batches are numbered by their longest samples: the j-th holds none of the j longest.
                for i in np.flatnonzero(fits)[j:].tolist():
                    variable = add_variable(self.problem, f"x{i:03d}_{p:03d}_{j:03d}", cat=pulp.LpBinary)
                    self.held[i, p, j] = variable
                    of_sample[i].append(variable)
                    time[variable] = seconds[i]
                    share[variable] = int(self.lengths[i]) / capacity
                self.problem += pulp.LpAffineExpression(share) <= 0
                self.problem += pulp.LpAffineExpression({**time, greatest: -1.0}) <= 0
                if j:
                    self.problem += pulp.LpAffineExpression({used: 1, self.is_used[p, j - 1]: -1}) <= 0
                whole |= time
            self.problem += pulp.LpAffineExpression(whole) <= 0
        for variables in of_sample:
            self.problem += pulp.lpSum(variables) == 1
        self._start_from(start)

    def _start_from(self, start: StepPlan) -> None:
        for variable in [*self.held.values(), *self.is_used.values()]:
            variable.setInitialValue(0)
        self.slowest.setInitialValue(1)
        pipeline_of, slot_of = start.pipeline_of[self.order], start.slot_of[self.order]
        for p, kind in enumerate(self.kinds.tolist()):
            own = np.flatnonzero(pipeline_of == p)
            # By the longest sample: the order that the program demands.
            _, first = np.unique(slot_of[own], return_index=True)
            greatest = 0.0
            for j, slot in enumerate(slot_of[own[np.sort(first)]].tolist()):
                members = own[slot_of[own] == slot]
                length = self.lengths[members]
                greatest = max(greatest, float(self.costs.seconds(kind, length @ length, length.sum())))
                self.is_used[p, j].setInitialValue(1)
                for i in members.tolist():
                    self.held[i, p, j].setInitialValue(1)
            self.greatest[p].setInitialValue(min(1.0, greatest / self.scale))

    def solve(self, time_limit: float, node_limit: int | None) -> tuple[StepPlan | None, float, bool]:
        """`(an answer, proved bound in seconds, whether solved)`."""
        has_answer, proved, is_solved = solve_program(
            self.problem, self.slowest, time_limit, uses_start=True, node_limit=node_limit
        )
        return self._answer() if has_answer else None, proved * self.scale, is_solved

    def _answer(self) -> StepPlan | None:
        """The answer in exact integers; None if a solver's rounding broke a rule."""
        pipeline_of, slot_of = np.full((2, len(self.lengths)), -1, dtype=np.int64)
        for (i, p, j), variable in self.held.items():
            if round(variable.varValue or 0):
                pipeline_of[self.order[i]], slot_of[self.order[i]] = p, j
        if (pipeline_of < 0).any():
            return None
        lengths = np.empty_like(self.lengths)
        lengths[self.order] = self.lengths
        return StepPlan.of(lengths, self.kinds, pipeline_of, slot_of, self.costs)
