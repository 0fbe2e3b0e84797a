"""HiGHS as PuLP calls it inside this process: silent from the start, and started from an answer."""

from __future__ import annotations

from typing import Any

import highspy
import pulp


class _Silent(highspy.Highs.__base__):
    """HiGHS itself, without Python's part, which comes on top of it.

    PuLP sets this option too, but later: since 1.16, HiGHS prints a banner on the process's stdout before that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setOptionValue("output_flag", False)


class _Model(highspy.Highs, _Silent):
    """As `highspy.Highs`, which initializes `_Silent` before all else."""


class HiGHS(pulp.HiGHS):
    """PuLP's solver, with a warm start, which PuLP's own does not have.

    Args:
        uses_start: start from the variables' values, a solution of the integer program.
        options: of HiGHS, under its own names.
    """

    def __init__(self, *, uses_start: bool, **options: Any) -> None:
        super().__init__(msg=False, **options)
        self.uses_start = uses_start

    def createAndConfigureSolver(self, problem: Any) -> None:  # noqa: N802
        """Make the model that the program goes into."""
        problem.solverModel = _Model()
        for name, value in self.optionsDict.items():
            problem.solverModel.setOptionValue(name, value)

    def callSolver(self, problem: Any) -> None:  # noqa: N802
        """Solve the model."""
        if self.uses_start:
            solution = highspy.HighsSolution()
            solution.col_value = [float(variable.varValue or 0.0) for variable in problem.variables()]
            problem.solverModel.setSolution(solution)
        super().callSolver(problem)
