"""The orders of an epoch's iterations: against their twins, and what each promises of every stretch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import StepRules, _order_and_steps, alternate, interleave, spread_by_rank, stratify
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.core.types import FILLER
from tests import naive
from tests.requests import request

ITERATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=80)


def arrays(iterations):
    return (np.array([values[k] for values in iterations], dtype=np.int64) for k in range(2))


def state_of(seed):
    return rng_state(seed), int(rng_state(seed)[0])


@given(iterations=ITERATIONS, seed=st.integers(0, 2**32))
def test_orders_equal_their_twins(iterations, seed):
    group, work = arrays(iterations)
    state, number = state_of(seed)
    assert spread_by_rank(work, state).tolist() == naive.spread_by_rank(work.tolist(), naive.SplitMix64(number))
    state, number = state_of(seed)
    assert stratify(group, work, state).tolist() == naive.stratify(group.tolist(), work.tolist(), number)
    state, number = state_of(seed)
    assert alternate(len(group), state).tolist() == naive.shuffled(len(group), number)


@given(iterations=ITERATIONS, mix=st.sampled_from(["alternate", "stratified"]), seed=st.integers(0, 99))
def test_an_order_holds_each_iteration_once(iterations, mix, seed):
    group, work = arrays(iterations)
    state, before = state_of(seed)
    assert sorted(interleave(mix, group, work, state).tolist()) == list(range(len(group)))
    assert int(state[0]) != before or len(group) < 2


@given(iterations=ITERATIONS, seed=st.integers(0, 99), data=st.data())
def test_every_stretch_holds_its_share_of_each_group(iterations, seed, data):
    group, work = arrays(iterations)
    order = stratify(group, work, rng_state(seed))
    first = data.draw(st.integers(0, len(order)))
    stretch = group[order[first : data.draw(st.integers(first, len(order)))]]
    num_groups = len(set(group.tolist()))
    for g in set(group.tolist()):
        share = (group == g).mean()
        off = abs((stretch == g).sum() - share * len(stretch))
        assert off <= (1 - share) + share * (num_groups - 1) + 1e-9


def test_every_stretch_holds_light_and_heavy_iterations():
    work = np.random.default_rng(0).integers(0, 10**9, 1000)
    heavy = work > np.median(work)

    def furthest(order):
        return max(abs(heavy[order[k : k + 20]].sum() - 10) for k in range(len(order) - 20))

    assert max(furthest(spread_by_rank(work, rng_state(seed))) for seed in range(5)) <= 3
    assert min(furthest(alternate(len(work), rng_state(seed))) for seed in range(5)) > 5


def test_neighbours_differ_from_epoch_to_epoch():
    """Inside a class of work the order is random."""
    work = np.arange(500)
    pairs = [set(itertools.pairwise(spread_by_rank(work, rng_state(seed)).tolist())) for seed in range(2)]
    assert len(pairs[0] & pairs[1]) < 25


@pytest.fixture(scope="module")
def pieces():
    rng = np.random.default_rng(1)
    lengths = np.concatenate([rng.integers(1, 900, 20_000), rng.integers(2000, 8000, 1000)]).astype(np.int32)
    return make_pieces(lengths, np.arange(len(lengths)), 8192, "error")


def plan_of(pieces, mix, seed, **steps):
    groups = (Group(capacity=1024), Group(capacity=8192, sp_size=4))
    plan = build_plan(pieces, request(groups, 8, "bfd", steps=StepRules(mix=mix, **steps), epochs=2, seed=seed))
    check_plan(plan)
    return plan


def long_share_of_steps(plan, epoch=0):
    schedule = plan.epochs[epoch]
    tokens = np.append(np.add.reduceat(plan.pieces.length[plan.packs.pieces], plan.packs.offsets[:-1]), 0)
    step = schedule.iteration_step[schedule.slot_iteration]
    is_long = np.append(plan.packs.group, 0)[schedule.slot_pack] == 1
    weights = tokens[schedule.slot_pack].astype(float)
    return np.bincount(step, weights=weights * is_long) / np.bincount(step, weights=weights)


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_of_a_stratified_plan_hold_the_groups_in_proportion(pieces, seed):
    spread = {}
    for mix in ("alternate", "stratified"):
        plan = plan_of(pieces, mix, seed, global_tokens=16 * 8192)
        for epoch in range(2):
            spread[mix, epoch] = long_share_of_steps(plan, epoch)[:-1].std()
        used = [schedule.slot_pack[schedule.slot_pack != FILLER].tolist() for schedule in plan.epochs]
        assert used[0] != used[1]
        assert sorted(used[0]) == sorted(used[1]) == list(range(len(plan.packs)))
    assert all(spread["stratified", epoch] < 0.5 * spread["alternate", epoch] for epoch in range(2))


@pytest.mark.parametrize("mix", ["alternate", "stratified"])
def test_after_the_curriculum_all_groups_mix(pieces, mix):
    plan = plan_of(pieces, mix, 0, curriculum_steps=40)
    share = long_share_of_steps(plan)
    assert (share[:40] == 0).all()
    assert 0 < share[40:80].mean() < 1.5 * share[40:].mean() < 1


@given(num=st.integers(1, 80), share=st.sampled_from([0.2, 0.5, 1.0]), target=st.sampled_from([None, 3]))
def test_the_curriculum_leaves_a_share_of_the_short_iterations_to_mix(num, share, target):
    group = np.arange(num) % 4 // 3  # Three short ones to one long one.
    rules = StepRules(global_tokens=target, curriculum_steps=500, curriculum_share=share)
    order, steps = _order_and_steps(group, np.ones(num, dtype=np.int64), group, 1, rules, 500, rng_state(3))
    assert sorted(order.tolist()) == list(range(num))
    whole = int(share * (group == 0).sum())
    taken = -(-whole // (target or 1)) * (target or 1) if whole else target or 1
    assert (group[order[: min(taken, (group == 0).sum())]] == 0).all()
    assert set(np.diff(steps).tolist()) <= {0, 1}


@given(
    iterations=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), min_size=1, max_size=60),
    mix=st.sampled_from(["alternate", "stratified"]),
    curriculum=st.integers(0, 5),
    target=st.sampled_from([None, 1, 60]),
)
def test_the_curriculum_is_of_short_groups_only(iterations, mix, curriculum, target):
    group, work = arrays(iterations)
    rules = StepRules(global_tokens=target, curriculum_steps=curriculum, mix=mix)
    order, steps = _order_and_steps(group, work, work, 2, rules, curriculum, rng_state(3))
    assert sorted(order.tolist()) == list(range(len(group)))
    assert steps[0] == 0
    assert set(np.diff(steps).tolist()) <= {0, 1}
    short = int((group != 2).sum())
    early = group[order[steps < curriculum]]
    if short and (early == 2).any():  # The short ones were too few for so many steps.
        assert (early != 2).sum() == short
        assert (early[:short] != 2).all()
