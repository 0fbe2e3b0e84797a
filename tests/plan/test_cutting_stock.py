"""The integer program of fewest packs: known optima, brute force, bounds, and what a time limit leaves."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.packing.ilp.columns import lp_lower_bound
from packer_cli.plan.packing.ilp.cutting_stock import ALGORITHM, IlpOptions, min_bin_slack
from tests import naive
from tests.plan.ilp import array, cut_packs, num_bfd, solve, triples

OPTIMA = {
    "triplets 60": (triples(20, 1000, 0), 1000, 20),
    "other triplets 60": (triples(20, 1000, 2), 1000, 20),
    "triplets of 128K": (triples(20, 131_072, 1), 131_072, 20),
    "cut in four": (cut_packs(20, 1000, 4, 2), 1000, 20),
    "cut in five": (cut_packs(12, 150, 5, 2), 150, 12),
    # 30 * (60+20+20, 50+30+20, 45+55) and 20 * (40+35+25): many packs of few lengths, the program's whole part.
    "many of few": (array([60, 20, 20, 50, 30, 20, 45, 55] * 30 + [40, 35, 25] * 20), 100, 110),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("other triplets 60", "cut in four", "cut in five")
        else name
        for name in OPTIMA
    ],
)
def test_known_optima_are_found_and_proved(name):
    """Of a linear program's equal solutions, releases of HiGHS give different ones; triplets may need a pack more."""
    lengths, capacity, optimum = OPTIMA[name]
    assert optimum <= solve(lengths, capacity, 120) <= optimum + ("triplets" in name)
    assert lp_lower_bound(lengths, capacity, 120) == optimum


@pytest.mark.parametrize("name", [name for name in OPTIMA if name != "many of few"])
def test_best_fit_does_not_find_these(name):
    """Against the assertions above passing vacuously."""
    lengths, capacity, optimum = OPTIMA[name]
    assert num_bfd(lengths, capacity) > optimum


@pytest.mark.parametrize("name", ["triplets 60", "other triplets 60", "cut in four"])
def test_minimum_slack_does_not_find_these(name):
    lengths, capacity, optimum = OPTIMA[name]
    assert len(min_bin_slack(lengths, capacity)[0]) - 1 > optimum


def test_larger_triplets_need_a_pack_more_at_most():
    """Nothing searches on after the first descent."""
    lengths = triples(40, 1000, 5)
    assert lp_lower_bound(lengths, 1000) == 40
    assert solve(lengths, 1000, 120) <= 41 < num_bfd(lengths, 1000)


def test_a_gap_of_best_fit_is_closed():
    """Uniform lengths, as in Falkenauer's other family; the optimum is not built in, so the bound must prove it."""
    lengths = np.random.default_rng(0).integers(20, 101, 1000).astype(np.int32)
    assert lp_lower_bound(lengths, 150) == solve(lengths, 150) < num_bfd(lengths, 150)


def test_the_linear_program_proves_more_than_l2():
    """Samples of a third and a bit, two to a pack, which the sum does not see, nor L2 with its halves."""
    lengths = array([35] * 12)
    assert packs_lower_bound(lengths, 100) == 5
    assert lp_lower_bound(lengths, 100) == solve(lengths, 100) == 6


@given(capacity=st.integers(1, 40), data=st.data())
@settings(max_examples=150)
def test_bound_optimum_result(capacity, data):
    lengths = array(data.draw(st.lists(st.integers(1, capacity), max_size=10)))
    optimum = naive.fewest_packs(lengths.tolist(), capacity)
    assert solve(lengths, capacity) == optimum
    assert packs_lower_bound(lengths, capacity) <= lp_lower_bound(lengths, capacity) <= optimum


@given(capacity=st.integers(20, 60), data=st.data(), max_lengths=st.integers(1, 4))
def test_rounded_lengths_give_valid_bounds_and_packs(capacity, data, max_lengths):
    lengths = array(data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=10)))
    optimum = naive.fewest_packs(lengths.tolist(), capacity)
    assert optimum <= solve(lengths, capacity, max_lengths=max_lengths)
    assert lp_lower_bound(lengths, capacity, 10, max_lengths) <= optimum


MANY = {
    # Name: lengths from, to (of 131,072), share of packs above the bound at most.
    "three to a pack": (30_000, 60_000, 0.02),
    "four to a pack": (20_000, 50_000, 0.015),
}


@pytest.mark.parametrize(
    ("least", "most", "above"),
    [
        pytest.param(*values, id=name, marks=() if "three" in name else pytest.mark.slow)
        for name, values in MANY.items()
    ],
)
def test_many_lengths_are_rounded_to_classes(least, most, above):
    lengths = np.random.default_rng(1).integers(least, most, 2000).astype(np.int32)
    num_packs = solve(lengths, 131_072, 1200, max_lengths=60)
    bound = lp_lower_bound(lengths, 131_072, 60, 60)
    assert bound <= num_packs <= bound * (1 + above)
    assert num_packs < num_bfd(lengths, 131_072)


def test_minimum_slack_closes_the_last_packs():
    """Short samples on a power of two: best-fit ends a little above the bound."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(300), 1, 10**6), 1, 4096).astype(np.int32)
    assert packs_lower_bound(lengths, 4096) == solve(lengths, 4096, 60) < num_bfd(lengths, 4096)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [131_072, 2**18])
def test_long_samples_among_sand(capacity):
    rng = np.random.default_rng(3)
    long = rng.choice(rng.integers(capacity // 4, capacity // 2, 100), 400)
    lengths = np.concatenate([long, rng.integers(1, 2000, 1500)]).astype(np.int32)
    num_packs = solve(lengths, capacity, time_limit=60)
    assert num_packs <= lp_lower_bound(lengths, capacity, 60) + 1
    assert num_packs < num_bfd(lengths, capacity)


@pytest.mark.parametrize("limit", [0.001, 0.1])
def test_a_time_limit_leaves_a_packing_and_a_bound(limit):
    lengths = np.random.default_rng(1).integers(20_000, 100_000, 20_000).astype(np.int32)
    solve(lengths[:100], 131_072, limit)  # compiles
    began = time.monotonic()
    num_packs = solve(lengths, 131_072, limit)
    assert time.monotonic() - began < 5
    assert lp_lower_bound(lengths, 131_072, limit) <= num_packs


def test_the_same_input_gives_the_same_packs():
    lengths = cut_packs(15, 1000, 4, 3)
    first, second = (ALGORITHM.pack(lengths, 1000, 7, IlpOptions()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
