"""The plans of every strategy, their sets and their rebalances are those of earlier releases.

A change that is meant to plan otherwise rewrites the hashes: `python -m tests.golden.rewrite`.
"""

from __future__ import annotations

import pytest

from packer_cli.plan.strategies.registry import PACKED
from tests.golden.cases import hash_of_case, hashes_of_chain, make_world, read_golden

GOLDEN = read_golden()


@pytest.fixture(scope="module")
def world(tmp_path_factory, repo):
    return make_world(tmp_path_factory.mktemp("golden"), repo)


@pytest.mark.parametrize("case", GOLDEN["plans"])
def test_a_plan_is_as_before(case, world):
    assert hash_of_case(case, world) == GOLDEN["plans"][case]


@pytest.mark.parametrize("case", GOLDEN["sets"])
def test_a_set_and_its_rebalances_are_as_before(case, world, tmp_path):
    assert hashes_of_chain(case, world, tmp_path / "out") == GOLDEN["sets"][case]


@pytest.mark.parametrize("kind", GOLDEN)
def test_no_strategy_is_left_out(kind):
    planned = {word.removeprefix("strategy=") for case in GOLDEN[kind] for word in case.split() if "strategy=" in word}
    assert planned | {"balanced"} == set(PACKED)
