"""`--max-samples`: no pack of any algorithm, fill or exchange has more, and none is lost."""

from __future__ import annotations

import itertools
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
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.packing.best_fit import best_fit_each, limit_samples, trim_packs
from tests import naive
from tests.plan.packing import assert_valid
from tests.plan.test_build import whole
from tests.requests import request


@st.composite
def packed(draw):
    """Packs within a capacity: `(offsets, members, lengths, capacity)`."""
    sizes = draw(st.lists(st.integers(1, 9), max_size=8))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    number = int(offsets[-1])
    lengths = np.array(draw(st.lists(st.integers(1, 30), min_size=number, max_size=number)), dtype=np.int32)
    members = np.array(draw(st.permutations(range(number))), dtype=np.int64)
    tokens = [int(lengths[members[a:b]].sum()) for a, b in itertools.pairwise(offsets)]
    return offsets, members, lengths, max([30, *tokens]) + draw(st.integers(0, 20))


def lists(offsets, members):
    return [members[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@given(case=packed(), most=st.integers(1, 6))
def test_trimmed_packs_keep_their_longest(case, most):
    offsets, members, lengths, _ = case
    kept, stay, lost = trim_packs(offsets, members, lengths, most)
    gone = []
    for before, after in zip(lists(offsets, members), lists(kept, stay), strict=True):
        longest = sorted(range(len(before)), key=lambda i: -lengths[before[i]])[:most]
        assert after == [before[i] for i in sorted(longest)]
        gone += [sample for i, sample in enumerate(before) if i not in longest]
    assert lost.tolist() == gone


@given(
    lengths=st.lists(st.integers(1, 30), max_size=30),
    packs=st.lists(st.tuples(st.one_of(st.integers(0, 30), st.integers(25, 200)), st.integers(0, 3)), max_size=6),
    capacity=st.sampled_from([30, 200]),
    most=st.integers(1, 4),
)
def test_placing_equals_its_twin(lengths, packs, capacity, most):
    rooms, slots = (np.array([pack[i] for pack in packs], dtype=np.int64) for i in range(2))
    slots = np.append(slots, np.full(len(lengths), most))
    order = np.arange(len(lengths), dtype=np.int32)
    pack_of, num_packs = best_fit_each(np.array(lengths, dtype=np.int32), order, capacity, rooms, slots)
    assert (pack_of.tolist(), num_packs) == naive.place_limited(lengths, packs, capacity, most)


@given(case=packed(), most=st.integers(1, 6))
def test_limited_packs_are_whole(case, most):
    offsets, members, lengths, capacity = case
    found = lists(*limit_samples(offsets, members, lengths, capacity, most))
    assert_valid(found, lengths, capacity)
    assert all(len(pack) <= most for pack in found)
    if all(size <= most for size in np.diff(offsets)):
        assert found == lists(offsets, members)


@st.composite
def limited_plans(draw):
    packing = draw(
        st.sampled_from([name for name, each in REGISTRY.items() if not (each.is_padded or each.needs_power_of_two)])
    )
    capacities = sorted(draw(st.sets(st.integers(20, 600), min_size=1, max_size=1 if REGISTRY[packing].cut else 3)))
    align = draw(st.sampled_from([1, 1, 8]))
    if REGISTRY[packing].needs_power_of_two:
        capacities = [1 << draw(st.integers(3, 9))]
    groups = [Group(capacity=-(-c // align) * align, align=align) for c in capacities]
    groups = list({group.capacity: group for group in groups}.values())
    lengths = draw(st.lists(st.integers(1, capacities[-1]), min_size=1, max_size=150))
    return lengths, request(
        groups,
        draw(st.sampled_from([1, 2, 8])),
        packing,
        fill=draw(st.sampled_from(["balanced", "greedy", "longest"])),
        balance=parse_balance(draw(st.sampled_from(["none", "sort", "refine"]))),
        max_samples=draw(st.integers(1, 9)),
    )


@given(case=limited_plans())
def test_no_pack_of_a_plan_has_more(case):
    lengths, asked = case
    lengths, samples = np.array(lengths, dtype=np.int32), np.arange(len(lengths))
    plan = build_plan(make_pieces(lengths, samples, asked.groups[-1].capacity, "split"), asked)
    check_plan(plan)
    check_pieces(plan.pieces, lengths, samples, is_whole=True)
    assert np.diff(plan.packs.offsets).max() <= asked.max_samples
    figures = measure(plan)
    assert -(-len(plan.pieces) // asked.max_samples) <= figures.packs_lower_bound <= figures.num_packs


@pytest.mark.parametrize(
    "packing", [name for name, each in REGISTRY.items() if not (each.is_padded or each.needs_power_of_two)]
)
def test_a_limit_that_no_pack_reaches_changes_nothing(packing):
    lengths = np.random.default_rng(1).integers(20, 300, 200)
    groups = [Group(capacity=600)]
    plans = [build_plan(whole(lengths), request(groups, 4, packing, max_samples=most)) for most in (31, 2**31 - 1)]
    for name in ("offsets", "pieces", "group"):
        assert np.array_equal(getattr(plans[0].packs, name), getattr(plans[1].packs, name))


def test_the_checker_sees_a_pack_of_too_many():
    plan = build_plan(whole([10] * 20), request([Group(capacity=100)], 1))
    with pytest.raises(PlanError) as error:
        check_plan(replace(plan, max_samples=9))
    assert str(error.value) == "pack 0 holds 10 samples, more than 9"
