"""Plans of unlike pipelines keep the rules of every plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config import PlannedConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import MOST_PROCESS_GROUPS, check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER
from packer_cli.plan.figures import plan_figures
from packer_cli.plan.strategies.hydraulis.layouts import MOST_LAYOUTS
from tests.naive.hydraulis import Costs
from tests.plan.test_build import whole
from tests.requests import request

SCHEMES = {
    Group(capacity=64): (4e-6, 1e-4, 1e-3),
    Group(capacity=128, pp_size=2): (2e-6, 5e-5, 1e-3),
    Group(capacity=160, tp_size=2): (2e-6, 6e-5, 1e-3),
    Group(capacity=256, tp_size=2, pp_size=3): (7e-7, 2e-5, 1e-3),
    Group(capacity=256, cp_size=2, tp_size=2): (1e-6, 3.5e-5, 1.5e-3),
}


def rules_for(num_gpus=12, **options):
    given = {
        "groups": list(SCHEMES), "group_costs": tuple(SCHEMES.values()), "gpus": num_gpus, "strategy": "hydraulis",
        "global_tokens": 500,
    }  # fmt: skip
    return resolve(PlannedConfig(**(given | options))).request


def pipelines_of(plan, schedule, iteration):
    """(group, first GPU) -> the lengths of each micro-batch; none for an idle pipeline."""
    found = {}
    own = np.flatnonzero(schedule.slot_iteration == iteration)
    for group, first, pack in zip(
        schedule.slot_group[own].tolist(), schedule.slot_first_gpu[own].tolist(), schedule.slot_pack[own].tolist(),
        strict=True,
    ):  # fmt: skip
        micro_batches = found.setdefault((group, first), [])
        if pack != FILLER:
            pieces = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
            micro_batches.append(plan.pieces.length[pieces].tolist())
    return found


@given(
    lengths=st.lists(st.integers(1, 256), min_size=1, max_size=80),
    num_gpus=st.sampled_from([6, 8, 12]),
    epochs=st.integers(1, 3),
    tokens=st.sampled_from([1, 300, 2000]),
    seed=st.integers(0, 2**40),
    packing=st.sampled_from(["search", "published"]),
)
@settings(max_examples=60)
def test_every_plan_passes_the_checker(lengths, num_gpus, epochs, tokens, seed, packing):
    rules = rules_for(num_gpus, epochs=epochs, global_tokens=tokens, seed=seed, packing=packing)
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    assert sorted(plan.packs.pieces.tolist()) == list(range(len(lengths)))
    assert plan.lockstep == 1
    assert set(plan.groups) <= set(SCHEMES)
    assert list(plan.groups) == [group for group in SCHEMES if group in plan.groups]
    steps = []
    for schedule in plan.epochs:
        assert schedule.num_iterations == schedule.num_steps
        own = []
        for i in range(schedule.num_iterations):
            pipelines = pipelines_of(plan, schedule, i)
            assert sum(plan.groups[group].num_gpus for group, _ in pipelines) == num_gpus
            for group, first in pipelines:
                assert first % plan.groups[group].layout.stage_gpus == 0, "tensor parallelism crosses a node"
            packs = schedule.slot_pack[schedule.slot_iteration == i]
            own.append(tuple(sorted(packs[packs != FILLER].tolist())))
            trained = sum(sum(map(sum, each)) for each in pipelines.values())
            assert trained <= tokens or sum(len(part) for each in pipelines.values() for part in each) == 1
        steps.append(own)
    # All epochs run the same steps; packs are numbered as the first reads them.
    assert all(sorted(own) == sorted(steps[0]) for own in steps)
    first = plan.epochs[0].slot_pack
    for g in range(len(plan.groups)):
        own = first[(plan.epochs[0].slot_group == g) & (first != FILLER)]
        assert (np.diff(own) == 1).all()
    again = build_plan(whole(lengths), rules)
    assert all(
        np.array_equal(a, b) for a, b in zip(vars(plan.packs).values(), vars(again.packs).values(), strict=True)
    )


def mixed_plan(seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(600) < 0.9, rng.integers(2, 60, 600), rng.integers(60, 257, 600))
    return build_plan(whole(lengths), rules_for(epochs=2, seed=seed))


def test_steps_change_their_pipelines():
    plan = mixed_plan()
    check_plan(plan)
    schedule = plan.epochs[0]
    layouts = {tuple(sorted(pipelines_of(plan, schedule, i))) for i in range(schedule.num_iterations)}
    assert 1 < len(layouts) <= MOST_LAYOUTS <= MOST_PROCESS_GROUPS
    assert any(len({plan.groups[group].layout for group, _ in layout}) > 1 for layout in layouts)
    orders = [schedule.slot_pack.tolist() for schedule in plan.epochs]
    assert orders[0] != orders[1]


def test_the_four_imbalances_are_those_of_the_definitions():
    plan = mixed_plan()
    schedule = plan.epochs[0]
    rates = zip(*(SCHEMES[group] for group in plan.groups), strict=True)
    twin = Costs(
        [group.num_gpus for group in plan.groups], [group.pp_size for group in plan.groups], *map(list, rates),
        [group.capacity for group in plan.groups],
    )  # fmt: skip
    within, between, oversized, tokens = [], [], 0, 0
    for i in range(schedule.num_iterations):
        times = []
        for (group, _), micro_batches in pipelines_of(plan, schedule, i).items():
            times.append(twin.pipeline_seconds(group, micro_batches))
            each = [twin.seconds(group, micro_batch) for micro_batch in micro_batches]
            if each:
                within.append(len(each) * max(each) / sum(each))
            for length in itertools.chain.from_iterable(micro_batches):
                least = min(capacity for capacity in twin.capacity if capacity >= length)
                oversized += length * (twin.capacity[group] > least)
                tokens += length
        between.append(max(times) / np.mean(times))
    found = plan_figures(plan, rules_for()).overall
    assert found.sampling_within == pytest.approx(oversized / tokens)
    assert found.packing_within == pytest.approx(np.mean(within))
    assert found.packing_between == pytest.approx(np.mean(between))
    assert found.sampling_between > 1
    other = request(plan.groups, plan.num_gpus)
    assert plan_figures(plan, other).overall.sampling_within is None
