"""The solver of the integer programs: where one is missing, the one that stands in, and bad options."""

from __future__ import annotations

import numpy as np
import pytest

from packer_cli.errors import RunError
from packer_cli.plan.packing.ilp import solver
from packer_cli.plan.packing.ilp.cutting_stock import IlpOptions
from packer_cli.plan.strategies.wlb.packers import min_max_work
from tests.plan.ilp import array, solve, triples


@pytest.fixture
def no_highs(monkeypatch):
    monkeypatch.setattr(solver, "_has_highs", lambda: False)


def test_a_missing_solver_names_the_remedy(no_highs, monkeypatch):
    import pulp

    monkeypatch.setattr(pulp.COIN_CMD, "available", lambda self: False)
    with pytest.raises(RunError) as error:
        solve(triples(5, 100, 7), 100)
    assert str(error.value) == (
        "PuLP has no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', or choose "
        "what needs none: packing 'bfd', bound 'l2'"
    )


def test_cbc_stands_in_for_highs(no_highs):
    try:
        solver.make_solver(1)
    except RunError:
        pytest.skip("no CBC here")
    assert solve(triples(5, 100, 7), 100) == 5
    pack_of = min_max_work(array([30, 30, 20, 20, 20]), array([0, 1, 0, 1, 1]), 2, 100)
    assert np.bincount(pack_of, weights=[900, 900, 400, 400, 400]).max() == 1700


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"time_limit": 0.0},
            "option 'time_limit' must be over 0 and at most 1000000, got 0.0",
        ),
        (
            {"time_limit": float("nan")},
            "option 'time_limit' must be over 0 and at most 1000000, got nan",
        ),
        ({"max_lengths": 0}, "option 'max_lengths' must be at least 1 and at most 2000, got 0"),
    ],
)
def test_bad_options_name_the_rule(options, message):
    with pytest.raises(ValueError) as error:
        IlpOptions(**options)
    assert str(error.value) == message
