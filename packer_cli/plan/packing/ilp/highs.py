"""HiGHS as PuLP calls it inside this process, but silent from the start."""

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
    """Silent `highspy.Highs`, which initializes `_Silent` before all else."""


class HiGHS(pulp.HiGHS):
    """PuLP's solver, whose keyword arguments are options of HiGHS, under its own names."""

    def createAndConfigureSolver(self, problem: Any) -> None:  # noqa: N802
        """Make the model that the program goes into."""
        problem.solverModel = _Model()
        for name, value in self.optionsDict.items():
            problem.solverModel.setOptionValue(name, value)
