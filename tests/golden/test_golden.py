"""The plans of every strategy, their sets and their rebalances are those of earlier releases.

A change that is meant to plan otherwise rewrites the hashes: `python -m tests.golden.rewrite`.
"""

from __future__ import annotations

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from packer_cli.plan.core.types import FILLER
from packer_cli.plan.strategies.registry import PACKED
from tests.golden.cases import hashes_of_chain, make_world, plan_of_case, read_golden
from tests.golden.hashes import hash_of_plan

GOLDEN = read_golden()


def strategy_of(case: str) -> str:
    """The strategy that a case names; `balanced` is the default."""
    named = (word.removeprefix("strategy=") for word in case.split() if word.startswith("strategy="))
    return next(named, "balanced")


def some(kind: str) -> list[ParameterSet]:
    """All cases; those after the first of each strategy are slow, as twins and the checker compare what they plan."""
    seen: set[str] = set()
    found = []
    for case in GOLDEN[kind]:
        strategy = strategy_of(case)
        found.append(pytest.param(case, marks=[pytest.mark.slow] if strategy in seen else []))
        seen.add(strategy)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory, repo):
    return make_world(tmp_path_factory.mktemp("golden"), repo)


@pytest.mark.parametrize("case", some("plans"))
def test_a_plan_is_as_before(case, world):
    plan = plan_of_case(case, world)
    assert hash_of_plan(plan) == GOLDEN["plans"][case]
    # Packs are numbered as the first epoch runs them: what a node reads lies together in the shards.
    packs = plan.epochs[0].slot_pack[plan.epochs[0].slot_pack != FILLER]
    assert len(packs) == len(plan.packs)
    for group in np.unique(plan.packs.group):
        assert (np.diff(packs[plan.packs.group[packs] == group]) > 0).all()
    assert (np.diff(plan.packs.group) >= 0).all()


@pytest.mark.parametrize("case", some("sets"))
def test_a_set_and_its_rebalances_are_as_before(case, world, tmp_path):
    assert hashes_of_chain(case, world, tmp_path / "out") == GOLDEN["sets"][case]


@pytest.mark.parametrize("kind", GOLDEN)
def test_no_strategy_is_left_out(kind):
    assert {strategy_of(case) for case in GOLDEN[kind]} == set(PACKED)
