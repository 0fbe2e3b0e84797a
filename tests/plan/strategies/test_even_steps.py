"""With pipelines, hbpack's own plan takes packs of like work into a step, and evens them out together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan, check_rest
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.figures import plan_figures
from tests.plan.test_build import whole

GIVEN = {"groups": "64:1,256:1", "gpus": 8, "parallel": "pp=2", "global_tokens": 1000}


def rules_for(**options):
    return resolve(PlanConfig(**(GIVEN | options))).request


def long_tail(num=3000, seed=0):
    random = np.random.default_rng(seed)
    return np.minimum(256, random.lognormal(np.log(12), 1.3, num).astype(np.int64) + 1)


def groups_of_steps(plan):
    """The groups of the packs of each step."""
    (schedule,) = plan.epochs[:1]
    found = [set() for _ in range(schedule.num_steps)]
    for step, group in zip(schedule.iteration_step[schedule.slot_iteration], schedule.slot_group, strict=True):
        found[step].add(int(group))
    return found


@given(
    lengths=st.lists(st.integers(1, 256), min_size=1, max_size=200),
    tokens=st.sampled_from([1, 700, 3000]),
    balance=st.sampled_from(["sort", "refine", "window:2+refine"]),
    lockstep=st.sampled_from(["all", "1"]),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60)
def test_every_plan_passes_the_checker(lengths, tokens, balance, lockstep, epochs, seed):
    rules = rules_for(global_tokens=tokens, balance=balance, lockstep=lockstep, epochs=epochs, seed=seed)
    assert rules.steps.evens_steps
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    assert sorted(plan.packs.pieces.tolist()) == list(range(len(lengths)))
    assert all(len(groups) == 1 for groups in groups_of_steps(plan))
    # A step has as many iterations as its tokens ask for, but for the last one of each group.
    counts = np.bincount(plan.epochs[0].iteration_step)
    most = [rules.steps.iterations_a_step(group, 8) for group in plan.groups]
    if lockstep == "all":
        short = [
            step for step, (group,) in enumerate(map(tuple, groups_of_steps(plan))) if counts[step] != most[group]
        ]
        assert len(short) <= len(plan.groups)
    dealing = replace(rules, num_gpus=4)
    rest = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 0)
    check_rest(plan, rest, np.arange(len(plan.packs)), 4)


@pytest.mark.parametrize("groups", ["256:1", "64:1,256:1"])
def test_the_micro_batches_of_a_step_are_even(groups):
    lengths = long_tail()
    imbalance = {}
    for mix in ("alternate", "stratified"):
        rules = rules_for(groups=groups, global_tokens=6000, step_mix=mix)
        imbalance[mix] = plan_figures(build_plan(whole(lengths), rules), rules).overall.imbalance
    assert imbalance["alternate"] < 1.1
    assert imbalance["stratified"] > 1.5


def test_the_order_of_steps_is_random_and_another_in_each_epoch():
    rules = rules_for(global_tokens=2000, epochs=2)
    plan = build_plan(whole(long_tail()), rules)
    work = np.add.reduceat(plan.pieces.length[plan.packs.pieces].astype(np.int64) ** 2, plan.packs.offsets[:-1])
    orders = []
    for schedule in plan.epochs:
        of_step = np.bincount(schedule.step_of_packs(len(plan.packs)), weights=work)
        assert abs(np.corrcoef(np.arange(len(of_step)), of_step)[0, 1]) < 0.5
        orders.append(of_step.tolist())
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": None},
        {"step_mix": "stratified"},
        {"balance": "none"},
        {"curriculum_steps": 3},
        {"global_tokens": None},
        {"strategy": "hbp"},
    ],
)
def test_steps_are_mixed_where_something_else_is_asked_for(options):
    assert rules_for().steps.evens_steps
    assert not rules_for(**options).steps.evens_steps
