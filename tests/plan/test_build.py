"""Whole plans: every generated one passes the checker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import PlanError, RunError
from packer_cli.plan.build import build_plan
from packer_cli.plan.core import cut as samples_module
from packer_cli.plan.core import mixture as mixture_module
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.mixture import weighted_samples
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import FILLER, Pieces
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY
from packer_cli.sizes import TokenShare
from tests.requests import request


def whole(lengths):
    lengths = np.array(lengths, dtype=np.int32)
    return Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths)


@st.composite
def settings_of_plans(draw):
    num_gpus = draw(st.sampled_from([1, 2, 4, 8, 32]))
    degrees = [d for d in (1, 2, 4, 8) if num_gpus % d == 0]
    capacities = sorted(draw(st.sets(st.integers(4, 2000), min_size=1, max_size=4)))
    groups = [Group(capacity=c, sp_size=draw(st.sampled_from(degrees))) for c in capacities]
    lengths = draw(st.lists(st.integers(1, capacities[-1]), min_size=1, max_size=150))
    return lengths, request(
        groups,
        num_gpus,
        draw(st.sampled_from([name for name, algorithm in REGISTRY.items() if not algorithm.needs_one_group])),
        steps=StepRules(
            global_tokens=draw(st.sampled_from([None, 1, 5000])),
            curriculum_steps=draw(st.sampled_from([0, 1, 3])),
            mix=draw(st.sampled_from(["alternate", "stratified"])),
        ),
        epochs=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 2**40)),
        balance=parse_balance(draw(st.sampled_from(["none", "sort", "window:2", "refine", "window:1+refine"]))),
        fill=draw(st.sampled_from(["balanced", "greedy", "longest"])),
        linear=draw(st.sampled_from([0, 0, 1, 300, 2**31 - 2])),
    )


@given(case=settings_of_plans())
def test_every_plan_passes_the_checker(case):
    lengths, asked = case
    plan = build_plan(whole(lengths), asked)
    check_plan(plan)
    # Independently of the checker: each sample once, in a group that is long enough.
    packed = [plan.packs.pieces[a:b] for a, b in zip(plan.packs.offsets[:-1], plan.packs.offsets[1:], strict=True)]
    assert sorted(i for pack in packed for i in pack.tolist()) == list(range(len(lengths)))
    for pack, group in zip(packed, plan.packs.group, strict=True):
        assert sum(lengths[i] for i in pack) <= plan.groups[group].capacity
    for schedule in plan.epochs:
        runs = schedule.slot_pack[schedule.slot_pack != FILLER]
        assert sorted(runs.tolist()) == list(range(len(packed)))


@given(case=settings_of_plans())
def test_a_plan_depends_on_its_seed_alone(case):
    lengths, asked = case
    first, second = (build_plan(whole(lengths), asked) for _ in range(2))
    for name in ("offsets", "pieces", "group"):
        assert np.array_equal(getattr(first.packs, name), getattr(second.packs, name))
    for a, b in zip(first.epochs, second.epochs, strict=True):
        assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in vars(a))


@pytest.fixture
def plan():
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(1, 400, 300), rng.integers(1000, 8000, 20)])
    return build_plan(whole(lengths), request([Group(capacity=1024), Group(capacity=8192, sp_size=4)], 8, epochs=2))


def test_packs_are_numbered_in_order_of_use(plan):
    for g in range(2):
        used = [p for p in plan.epochs[0].slot_pack if p != FILLER and plan.packs.group[p] == g]
        slots = plan.epochs[0].slot_iteration[np.isin(plan.epochs[0].slot_pack, used)]
        assert used == sorted(used)
        assert (np.diff(slots) >= 0).all()


@pytest.mark.parametrize(
    ("num_samples", "sizes"),
    [
        # Eleven full packs on four ranks: the last three are dealt to all four ranks.
        (110, [7, 7, 8, 8, *[10] * 8]),
        # Nine: one pack over four ranks would be too few samples to be even, so four more join it.
        (90, [*[6] * 6, 7, 7, *[10] * 4]),
    ],
)
def test_leftover_packs_are_spread_over_all_ranks(num_samples, sizes):
    plan = build_plan(whole([10] * num_samples), request([Group(capacity=100)], 4))
    check_plan(plan)
    schedule = plan.epochs[0]
    assert schedule.num_iterations == 3
    assert FILLER not in schedule.slot_pack
    assert sorted(np.diff(plan.packs.offsets).tolist()) == sizes
    assert set(schedule.slot_row_length.tolist()) == {100}


def test_rows_of_a_spread_iteration_are_short():
    """Padding to the row length then wastes little."""
    plan = build_plan(whole([128] * 50), request([Group(capacity=1280)], 4))
    assert sorted(plan.epochs[0].slot_row_length.tolist()) == [*[768] * 4, *[896] * 4]


def test_fillers_stand_in_only_where_samples_are_too_few():
    plan = build_plan(whole([100, 100, 100]), request([Group(capacity=100)], 2))
    check_plan(plan)
    assert (plan.epochs[0].slot_pack == FILLER).sum() == 1


def test_more_ranks_than_samples():
    plan = build_plan(whole([5]), request([Group(capacity=100, sp_size=2)], 8))
    check_plan(plan)
    assert plan.epochs[0].slot_pack.tolist().count(FILLER) == 3


def test_curriculum_takes_the_short_groups_first(plan):
    lengths = plan.pieces.length
    longer = build_plan(
        whole(lengths),
        request([Group(capacity=1024), Group(capacity=8192, sp_size=4)], 8, steps=StepRules(curriculum_steps=3)),
    )
    check_plan(longer)
    schedule = longer.epochs[0]
    slot_step = schedule.iteration_step[schedule.slot_iteration]
    packs = schedule.slot_pack[(slot_step < 3) & (schedule.slot_pack != FILLER)]
    assert len(packs) > 0
    assert (longer.packs.group[packs] == 0).all()


def test_curriculum_of_one_group_takes_the_short_samples_first():
    lengths = np.concatenate([np.full(400, 50), np.full(20, 1000)])
    one = request([Group(capacity=1000)], 4, balance=parse_balance("sort"), steps=StepRules(curriculum_steps=3))
    plan = build_plan(whole(lengths), one)
    check_plan(plan)
    schedule = plan.epochs[0]
    assert schedule.num_steps == 10
    first = schedule.slot_pack[schedule.slot_iteration < 3]
    longest = np.maximum.reduceat(plan.pieces.length[plan.packs.pieces], plan.packs.offsets[:-1])
    assert (longest[first] == 50).all()


def test_global_tokens_gather_iterations_into_steps():
    plan = build_plan(whole([100] * 64), request([Group(capacity=100)], 4, steps=StepRules(global_tokens=1600)))
    check_plan(plan)
    assert plan.epochs[0].iteration_step.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_epochs_differ_in_order_but_share_packs(plan):
    first, second = plan.epochs
    assert first.slot_pack.tolist() != second.slot_pack.tolist()
    assert sorted(first.slot_pack.tolist()) == sorted(second.slot_pack.tolist())


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    capacity=st.integers(1, 120),
    weight=st.sampled_from([1.0, 0.5, 2.0, 2.5]),
    seed=st.integers(0, 50),
)
def test_split_covers_every_token(lengths, capacity, weight, seed):
    array = np.array(lengths, dtype=np.int32)
    samples = weighted_samples(np.zeros(len(array), dtype=np.int32), [weight], seed, array)
    assert (samples is None) == (weight == 1.0)
    pieces = make_pieces(array, samples, capacity, "split")
    check_pieces(pieces, array, samples, is_whole=True)
    assert int(pieces.length.max(initial=0)) <= capacity
    samples = np.arange(len(array)) if samples is None else samples
    assert len(samples) == round(weight * len(array)) or weight in (0.5, 2.5)
    check_pieces(pieces, array, samples, is_whole=True)
    tokens = [(s, b + k) for s, b, n in zip(pieces.sample, pieces.start, pieces.length, strict=True) for k in range(n)]
    assert sorted(tokens) == sorted((s, k) for s in samples for k in range(lengths[s]))


def test_weights_draw_a_seeded_part():
    sources = np.array([0] * 100 + [1] * 100, dtype=np.int32)
    samples = weighted_samples(sources, [0.25, 2.0], 3, np.ones_like(sources))
    assert (samples < 100).sum() == 25
    assert np.bincount(samples[samples >= 100])[100:].tolist() == [2] * 100
    assert np.array_equal(samples, weighted_samples(sources, [0.25, 2.0], 3, np.ones_like(sources)))
    assert not np.array_equal(samples, weighted_samples(sources, [0.25, 2.0], 4, np.ones_like(sources)))


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    others=st.integers(0, 5),
    tokens=st.integers(1, 4000),
    seed=st.integers(0, 20),
)
def test_tokens_come_as_near_as_whole_samples_allow(lengths, others, tokens, seed):
    array = np.array([*lengths, *[7] * others], dtype=np.int32)
    sources = np.array([0] * len(lengths) + [1] * others, dtype=np.int32)
    shares = [TokenShare(tokens), 1.0]
    samples = weighted_samples(sources, shares, seed, array)
    assert (samples[samples >= len(lengths)] == np.arange(len(lengths), len(array))).all()
    own = samples[samples < len(lengths)]
    assert 2 * abs(int(array[own].sum()) - tokens) <= max(lengths)
    times = np.bincount(own, minlength=len(lengths))
    assert times.max() - times.min() <= 1  # Whole epochs, and a part of one.
    assert times.min() == tokens // sum(lengths) or times.min() == times.max()
    assert np.array_equal(samples, weighted_samples(sources, shares, seed, array))


def test_weights_that_ask_for_too_many_samples(monkeypatch):
    sources = np.array([0] * 30 + [1] * 10, dtype=np.int32)
    message = (
        r"the weights make about 3e\+13 samples an epoch out of 40; it may have 2147483647 at most: give smaller "
        r"weights \(PATH@WEIGHT\), or more epochs"
    )
    with pytest.raises(RunError, match=message):
        weighted_samples(sources, [1e12, 2.0], 0, np.ones_like(sources))
    monkeypatch.setattr(mixture_module, "MOST_PIECES", 95)
    assert len(weighted_samples(sources, [2.5, 2.0], 0, np.ones_like(sources))) == 95
    with pytest.raises(RunError, match=r"about 1.02e\+03 samples an epoch out of 40"):
        weighted_samples(sources, [TokenShare(1000), 2.0], seed=0, lengths=np.ones(40, dtype=np.int32))
    with pytest.raises(RunError, match="about 105 samples an epoch out of 40; it may have 95 at most"):
        weighted_samples(sources, [2.5, 3.0], 0, np.ones_like(sources))


@pytest.mark.parametrize(("overflow", "expected"), [("truncate", [5, 10]), ("drop", [5]), ("split", [5, 10, 10, 3])])
def test_overflow(overflow, expected):
    pieces = make_pieces(np.array([5, 23], dtype=np.int32), np.arange(2), 10, overflow)
    assert pieces.length.tolist() == expected


def test_more_pieces_than_a_plan_can_number(monkeypatch):
    monkeypatch.setattr(samples_module, "MOST_PIECES", 5)
    with pytest.raises(RunError) as error:
        make_pieces(np.array([9, 9], dtype=np.int32), None, 4, "split")
    assert str(error.value) == (
        "the plan would have 6 pieces of samples; it may have 5 at most: divide the inputs among several sets, or "
        "give longer --groups or smaller weights (PATH@WEIGHT)"
    )


def test_copies_of_a_sample_may_be_cut_at_different_places():
    lengths = np.array([20], dtype=np.int32)

    def pieces(*parts):
        start, length = zip(*parts, strict=True)
        return Pieces(
            samples=np.zeros(len(parts), dtype=np.int64),
            start=np.array(start),
            length=np.array(length, dtype=np.int32),
        )

    check_pieces(pieces((0, 12), (12, 8), (0, 7), (7, 13)), lengths, np.array([0, 0]), is_whole=True)
    with pytest.raises(PlanError, match=r"^the pieces of a sample leave a gap or overlap$"):
        check_pieces(pieces((0, 12), (10, 10), (0, 8), (10, 10)), lengths, np.array([0, 0]), is_whole=True)
