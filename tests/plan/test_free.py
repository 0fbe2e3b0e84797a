"""Replicas without lockstep: the iterations of a step become one, and its packs are dealt by time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, validate
from packer_cli.errors import ConfigError, PlanError
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import FILLER
from packer_cli.plan.strategies.assemble import run_freely
from tests.naive import free as naive
from tests.plan.test_build import settings_of_plans, whole
from tests.requests import request


def slots_of(schedule):
    names = ("slot_iteration", "slot_first_gpu", "slot_group", "slot_pack", "slot_row_length")
    return list(zip(*(getattr(schedule, name).tolist() for name in names), strict=True))


@given(case=settings_of_plans(), has_times=st.booleans(), falls=st.booleans(), seed=st.integers(0, 99))
def test_free_replicas_are_those_of_the_twin(case, has_times, falls, seed):
    lengths, asked = case
    plan = build_plan(whole(lengths), asked)
    # Equal times too, so that ties are seen.
    times = np.random.default_rng(seed).integers(1, 4, len(plan.packs)).astype(float) if has_times else None
    falling = np.random.default_rng(seed + 1).integers(1, 4, len(plan.packs)) if falls else None
    free = [run_freely(schedule, len(plan.groups), times, falling) for schedule in plan.epochs]
    check_plan(replace(plan, epochs=tuple(free), lockstep=1))
    for before, after in zip(plan.epochs, free, strict=True):
        wanted_slots, wanted_steps = naive.run_freely(
            slots_of(before),
            before.iteration_step.tolist(),
            *(None if each is None else each.tolist() for each in (times, falling)),
        )
        assert slots_of(after) == wanted_slots
        assert after.iteration_step.tolist() == wanted_steps


def test_replicas_run_as_many_packs_as_their_time_allows():
    """One heavy pack on one GPU, four light ones on the other; no filler where a replica has a pack."""
    lengths = [[100], *[[20, 5]] * 4]
    one = request([Group(capacity=100)], 2, "none", linear=1, steps=StepRules(global_tokens=10_000), lockstep=1)
    plan = build_plan(whole([length for pack in lengths for length in pack]), one)
    check_plan(plan)
    schedule = plan.epochs[0]
    assert (schedule.num_iterations, schedule.num_steps) == (1, 1)
    assert FILLER not in schedule.slot_pack
    tokens = plan.pieces.length[plan.packs.pieces[schedule.slot_pack]]
    heavy = schedule.slot_first_gpu[np.argmax(tokens)]
    assert (schedule.slot_first_gpu == heavy).sum() == 1
    # The work of a replica is that of all its packs.
    works = sorted([100 * 100, 4 * (20 * 20 + 5 * 5)])
    assert measure(plan).abr == pytest.approx(1 - sum(works) / (2 * works[1]))


def test_process_groups_are_limited():
    """GPU 0 in replicas of 2 to 34 GPUs, each in an iteration of its own with idle GPUs beside it."""
    degrees = range(2, 35)
    plan = build_plan(whole([1] * 33 * 36), request([Group(capacity=1)], 36, "none"))
    groups = (Group(capacity=1), *(Group(capacity=1, sp_size=degree) for degree in degrees))
    slots = [
        (i, first, group, degree)
        for i, degree in enumerate(degrees)
        for first, group in [(0, degree - 1), *((gpu, 0) for gpu in range(degree, 36))]
    ]
    iteration, first_gpu, group, _ = map(np.array, zip(*slots, strict=True))
    schedule = replace(
        plan.epochs[0],
        slot_iteration=iteration,
        slot_pack=np.arange(len(slots)),
        slot_group=group.astype(np.int16),
        slot_first_gpu=first_gpu.astype(np.int32),
        slot_row_length=np.where(group > 0, group + 1, 1).astype(np.int32),  # A token on each GPU.
    )
    packs = replace(
        plan.packs,
        offsets=np.arange(len(slots) + 1),
        pieces=np.arange(len(slots)),
        group=group.astype(np.int16),
        cp_sharding=np.zeros(len(slots), dtype=np.int8),
    )
    many = replace(plan, groups=groups, pieces=whole([1] * len(slots)), packs=packs, epochs=(schedule,))
    with pytest.raises(PlanError, match=r"^GPU 0 is in 33 process groups, more than 32$"):
        check_plan(many)


def test_lockstep_needs_steps():
    with pytest.raises(ConfigError) as error:
        validate(PlanConfig, {"groups": "16k:1", "gpus": 8, "lockstep": 1})
    assert str(error.value) == (
        "--lockstep 1 needs --global-tokens: replicas run freely until a step ends, and without it every iteration is "
        "a step"
    )
