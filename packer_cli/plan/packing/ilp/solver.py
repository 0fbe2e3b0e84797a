"""The solver that PuLP calls: HiGHS inside this process, else CBC. Always on one thread, for repeatable answers."""

from __future__ import annotations

from functools import cache
from typing import Any

from packer_cli.errors import RunError

TOLERANCE = 1e-6
"""Solvers let constraints be violated by this much, so bounds are lowered by as much."""


def make_solver(time_limit: float) -> Any:
    """Make a PuLP solver that stops after so many seconds with the best answer so far.

    Raises:
        RunError: neither HiGHS nor CBC is installed.
    """
    import pulp

    # A solver may read 0 or less as no limit.
    limit = float(max(0.01, time_limit))
    if _has_highs():
        return _silent_highs()(threads=1, mip_rel_gap=0.0, time_limit=limit)
    for place in _cbc_places():
        cbc = pulp.COIN_CMD(msg=False, threads=1, gapRel=0.0, path=place, timeLimit=max(1.0, limit))
        if cbc.available():
            return cbc
    raise RunError(
        "PuLP has no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', or choose "
        "what needs none: packing 'bfd', bound 'l2'"
    )


def solve_program(problem: Any, time_limit: float) -> bool:
    """Solve an integer program, and say whether there is an answer; arguments as of `make_solver`."""
    import pulp

    problem.solve(make_solver(time_limit))
    return problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)


def add_variable(problem: Any, name: str, **rules: Any) -> Any:
    """Add a variable to a PuLP program, as PuLP 4 requires, or as releases before 3.3 do."""
    import pulp

    if hasattr(problem, "add_variable"):
        return problem.add_variable(name, **rules)
    return pulp.LpVariable(name, **rules)


def _cbc_places() -> list[str | None]:
    """List places where CBC may be: on the path, or in PuLP, which included it up to release 3."""
    import pulp

    bundled = getattr(getattr(pulp.apis, "coin_api", None), "pulp_cbc_path", None)
    return [None, bundled] if bundled else [None]


@cache
def _silent_highs() -> type:
    """Return PuLP's solver that calls HiGHS inside this process, silent from the start; its options are HiGHS's own.

    PuLP silences it, too, but later: since 1.16, HiGHS prints a banner on the process's stdout before that.
    """
    import highspy
    import pulp

    class Silent(highspy.Highs.__base__):
        def __init__(self) -> None:
            super().__init__()
            self.setOptionValue("output_flag", False)

    class Model(highspy.Highs, Silent):
        """HiGHS, which initializes `Silent` before Python's part, the one that prints."""

    class Solver(pulp.HiGHS):
        def createAndConfigureSolver(self, problem: Any) -> None:  # noqa: N802
            problem.solverModel = Model()
            for name, value in self.optionsDict.items():
                problem.solverModel.setOptionValue(name, value)

    return Solver


def _has_highs() -> bool:
    import pulp

    return bool(pulp.HiGHS(msg=False).available())
