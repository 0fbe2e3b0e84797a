"""The solver that PuLP calls: HiGHS inside this process, else CBC. Always on one thread, for repeatable answers."""

from __future__ import annotations

from typing import Any

from packer_cli.errors import RunError

TOLERANCE = 1e-6
"""Solvers let constraints be violated by this much, so bounds are lowered by as much."""


def make_solver(time_limit: float, *, uses_start: bool = False, node_limit: int | None = None) -> Any:
    """A PuLP solver that stops after `time_limit` seconds with the best answer so far.

    Args:
        time_limit: seconds; infinite for none.
        uses_start: start from the variables' values, a solution of the integer program.
        node_limit: nodes of the search tree to look at; None: any number.

    Raises:
        RunError: neither HiGHS nor CBC is installed.
    """
    import pulp

    # A solver may read 0 or less as no limit.
    limit = None if time_limit == float("inf") else max(0.01, time_limit)
    if _has_highs():
        from packer_cli.plan.packing.ilp.highs import HiGHS

        options: dict[str, float] = {"threads": 1, "mip_rel_gap": 0.0}
        if limit is not None:
            options["time_limit"] = limit
        if node_limit is not None:
            options["mip_max_nodes"] = node_limit
        return HiGHS(uses_start=uses_start, **options)
    for place in _cbc_places():
        cbc = pulp.COIN_CMD(
            msg=False,
            threads=1,
            timeLimit=limit and max(1.0, limit),
            gapRel=0.0,
            warmStart=uses_start,
            maxNodes=node_limit,
            path=place,
        )
        if cbc.available():
            return cbc
    raise RunError(
        "PuLP has no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', or choose "
        "what needs none: packing 'bfd', bound 'l2'"
    )


def solve_program(problem: Any, time_limit: float, *, uses_start: bool = False, node_limit: int | None = None) -> bool:
    """Solve an integer program, and say whether there is an answer; arguments as of `make_solver`."""
    import pulp

    problem.solve(make_solver(time_limit, uses_start=uses_start, node_limit=node_limit))
    return problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)


def add_variable(problem: Any, name: str, **rules: Any) -> Any:
    """A variable of a PuLP program, created as PuLP 4 requires, or as releases before 3.3 do."""
    import pulp

    if hasattr(problem, "add_variable"):
        return problem.add_variable(name, **rules)
    return pulp.LpVariable(name, **rules)


def _cbc_places() -> list[str | None]:
    """Where CBC may be: on the path, or in PuLP, which included it up to release 3."""
    import pulp

    bundled = getattr(getattr(pulp.apis, "coin_api", None), "pulp_cbc_path", None)
    return [None, bundled] if bundled else [None]


def _has_highs() -> bool:
    import pulp

    return bool(pulp.HiGHS(msg=False).available())
