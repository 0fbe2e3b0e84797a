"""The packs that an epoch has left, dealt to another number of GPUs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import PlanError
from packer_cli.plan.build import build_plan, check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.csr import pack_tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import FILLER, Pieces, Plan
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.strategies.protocol import PlanRequest
from tests.requests import request

GROUPS = (Group(capacity=16), Group(capacity=64, sp_size=2))


def small_plan(lengths: list[int], num_gpus: int, balance: str = "sort") -> Plan:
    pieces = Pieces(
        samples=None,
        start=np.zeros(len(lengths), dtype=np.int32),
        length=np.array(lengths, dtype=np.int32),
    )
    return build_plan(pieces, asked(num_gpus, balance, steps=StepRules(global_tokens=100)))


def asked(num_gpus: int, balance: str = "sort", **options) -> PlanRequest:
    return request(GROUPS, num_gpus, "bfd", balance=parse_balance(balance), **options)


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=80),
    gpus=st.lists(st.sampled_from([2, 4, 8, 16]), min_size=2, max_size=4),
    share=st.floats(0, 1),
    balance=st.sampled_from(["none", "sort", "window:2", "refine"]),
)
def test_a_rest_is_dealt_whole_in_the_fewest_iterations(lengths, gpus, share, balance):
    plan = small_plan(lengths, gpus[0], balance)
    schedule, run_before = plan.epochs[0], Counter()
    left = np.arange(len(plan.packs))
    for number, num_gpus in enumerate(gpus[1:]):
        step = int(schedule.num_steps * share)
        done = schedule.slot_pack[schedule.iteration_step[schedule.slot_iteration] < step]
        run_before.update(done[done != FILLER].tolist())
        left, iteration = rest_of_epoch(schedule, step)
        assert iteration == (schedule.iteration_step < step).sum()
        assert run_before + Counter(left.tolist()) == Counter(range(len(plan.packs)))
        if not len(left):
            return
        dealing = asked(num_gpus, balance, steps=StepRules(global_tokens=100), seed=1)
        schedule = dealing.strategy.rest(plan, left, dealing, number)
        check_rest(plan, schedule, left, num_gpus)
        by_group = np.bincount(plan.packs.group[left], minlength=2)
        assert schedule.num_iterations == sum(
            -(-n // (num_gpus // sp)) for n, sp in zip(by_group, (1, 2), strict=True)
        )
    whole = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 5)
    check_plan(Plan(groups=plan.groups, num_gpus=num_gpus, pieces=plan.pieces, packs=plan.packs, epochs=(whole,)))


@pytest.mark.parametrize("linear", [0, 100])
def test_the_rest_is_balanced_by_work(linear):
    """Sorted and dealt, the spread inside an iteration is far below that of packs at random."""
    plan = small_plan(np.random.default_rng(0).integers(17, 65, 400).tolist(), 8)
    work = np.append(pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length, linear)[1], 0)
    spreads = []
    for balance in ("sort", "none"):
        dealing = asked(16, balance, linear=linear)
        schedule = dealing.strategy.rest(plan, np.arange(0, len(plan.packs), 2), dealing, 0)
        slots = work[schedule.slot_pack.reshape(schedule.num_iterations, 8)]
        spreads.append(np.mean(1 - slots.mean(axis=1) / slots.max(axis=1)))
    assert spreads[0] < spreads[1] / 3


def test_the_check_sees_a_pack_that_ran_before_or_is_missing():
    plan = small_plan([16] * 12, 4)
    dealing = asked(2)
    schedule = dealing.strategy.rest(plan, np.arange(4, 12), dealing, 0)
    check_rest(plan, schedule, np.arange(4, 12), 2)
    with pytest.raises(PlanError, match=r"^pack 4 is scheduled and was run before$"):
        check_rest(plan, schedule, np.arange(5, 12), 2)
    with pytest.raises(PlanError, match=r"^epoch 0: pack 0 runs 0 times; it must run exactly once$"):
        check_rest(plan, schedule, np.arange(3, 12), 2)
