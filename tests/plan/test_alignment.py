"""Plans that count each sample at its padded length: no row outgrows its capacity, and the checker sees to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import PlanError
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import FILLER
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY
from tests.plan.test_build import whole
from tests.requests import request


def up(length, align):
    return -(-int(length) // align) * align


@st.composite
def aligned_cases(draw):
    """Samples and rules for groups that each align to a number of their own."""
    num_gpus = draw(st.sampled_from([1, 4, 8]))
    names = [name for name, each in REGISTRY.items() if not (each.needs_power_of_two or each.is_padded)]
    packing = draw(st.sampled_from(names))
    most = 1 if REGISTRY[packing].cut else 3
    groups, capacity = [], 0
    is_power = REGISTRY[packing].needs_power_of_two
    for _ in range(draw(st.integers(1, most))):
        align = draw(st.sampled_from([1, 2, 16] if is_power else [1, 2, 7, 16]))
        capacity = 1 << draw(st.integers(4, 9)) if is_power else up(capacity + draw(st.integers(1, 400)), align)
        groups.append(Group(capacity=capacity, sp_size=draw(st.sampled_from([1, num_gpus])), align=align))
    lengths = draw(st.lists(st.integers(1, 2 * capacity), min_size=1, max_size=120))
    fill = draw(st.sampled_from(["balanced", "greedy", "longest"]))
    balance = parse_balance(draw(st.sampled_from(["none", "sort", "refine"])))
    linear = draw(st.sampled_from([0, 300]))
    return lengths, request(
        groups, num_gpus, packing, fill=fill, balance=balance, linear=linear, seed=draw(st.integers(0, 9))
    )


def assert_rows_hold(plan):
    """Each row holds its samples, each padded as its group says. Independent of the checker."""
    sizes = []
    for pack, group in enumerate(plan.packs.group):
        members = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
        sizes.append(sum(up(plan.pieces.length[i], plan.groups[group].align) for i in members))
        assert sizes[-1] <= plan.groups[group].capacity
    for schedule in plan.epochs:
        for pack, length in zip(schedule.slot_pack, schedule.slot_row_length, strict=True):
            assert pack == FILLER or sizes[pack] <= length


@given(case=aligned_cases())
def test_no_row_outgrows_its_capacity(case):
    lengths, asked = case
    lengths, samples = np.array(lengths, dtype=np.int32), np.arange(len(lengths))
    plan = build_plan(make_pieces(lengths, samples, asked.groups[-1].capacity, "split"), asked)
    check_plan(plan)
    check_pieces(plan.pieces, lengths, samples, is_whole=True)
    assert_rows_hold(plan)
    dealing = replace(asked, num_gpus=2 * plan.num_gpus, seed=1)
    again = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, epoch=1)
    dealt = replace(plan, num_gpus=2 * plan.num_gpus, epochs=(again,))
    check_plan(dealt)
    assert_rows_hold(dealt)


@pytest.mark.parametrize("packing", [name for name, each in REGISTRY.items() if not each.is_padded])
def test_lengths_that_need_no_padding_are_planned_as_without(packing):
    lengths = 16 * np.random.default_rng(0).integers(1, 33, 300)
    plans = [
        build_plan(whole(lengths), request([Group(capacity=512, align=align)], 4, packing, fill="balanced"))
        for align in (1, 16)
    ]
    for name in ("offsets", "pieces", "group"):
        assert np.array_equal(getattr(plans[0].packs, name), getattr(plans[1].packs, name))


@given(
    lengths=st.lists(st.integers(1, 800), min_size=1, max_size=60),
    align=st.sampled_from([2, 16]),
    window=st.sampled_from([0, 2]),
)
def test_mixed_degrees_hold_too(lengths, align, window):
    groups = [Group(capacity=400 * degree, sp_size=degree, align=align) for degree in (1, 2, 4)]
    rates = ((1e-9, 1e-6, 1e-4), (6e-10, 6e-7, 1e-4), (3e-10, 4e-7, 1e-4))
    balance = parse_balance(f"window:{window}" if window else "sort")
    plan = build_plan(whole(lengths), request(groups, 8, strategy="flexsp:all", rates=rates, balance=balance))
    check_plan(plan)
    assert_rows_hold(plan)


def test_the_checker_sees_rows_that_alignment_overfills():
    lengths = [100, 28] * 8
    plan = build_plan(whole(lengths), request([Group(capacity=128)], 2))
    aligned = replace(plan, groups=(Group(capacity=128, align=16),))
    with pytest.raises(PlanError) as error:
        check_plan(aligned)
    assert str(error.value) == "pack 0 holds 144 tokens with samples aligned to 16, over its capacity of 128"


def test_the_checker_sees_a_row_too_short_for_aligned_samples():
    plan = build_plan(whole([100, 28] * 8), request([Group(capacity=256, align=16)], 2))
    for schedule in plan.epochs:
        schedule.slot_row_length[:] = [
            plan.pieces.length[plan.packs.pieces[plan.packs.offsets[k] : plan.packs.offsets[k + 1]]].sum()
            for k in schedule.slot_pack
        ]
    with pytest.raises(PlanError, match=r"^epoch 0: a pack is longer than its row$"):
        check_plan(plan)


def test_padding_of_alignment_is_told_apart():
    plan = build_plan(whole([90] * 4), request([Group(capacity=128, align=16)], 2))
    figures = measure(plan)
    # Rows of 128 tokens, each with 90 real ones, 6 that align them, and 32 at the end.
    assert (figures.num_tokens, figures.pr, figures.alignment_pr) == (360, 38 / 128, 6 / 128)
    assert measure(build_plan(whole([90] * 4), request([Group(capacity=128)], 2))).alignment_pr is None


def test_steps_count_real_tokens():
    counted = build_plan(
        whole([17] * 32), request([Group(capacity=64, align=32)], 1, steps=StepRules(global_tokens=68))
    )
    assert np.bincount(counted.epochs[0].iteration_step).tolist() == [2] * 8


def test_a_capacity_that_aligned_samples_cannot_fill_is_refused():
    with pytest.raises(ValueError) as error:
        request([Group(capacity=1000, align=16)], 1)
    assert str(error.value) == (
        "the capacity of group 1000:1 must be a multiple of its align, 16 tokens; choose 992 or 1008, or another align"
    )
    for capacity, choice in ((2**31 - 1, 2**31 - 16), (5, 16)):
        with pytest.raises(ValueError, match=f"choose {choice}, or another align"):
            request([Group(capacity=capacity, align=16)], 1)
