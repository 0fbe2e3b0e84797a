"""Integer programs: optimal instances, brute force, and what a time limit leaves."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.bounds import lp_lower_bound, packs_lower_bound
from packer_cli.plan.length_index import index_add, index_ceiling, index_floor, make_index
from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import PackingOptions
from packer_cli.plan.packing.ilp import ALGORITHM, IlpOptions, min_max_work, solve_cutting_stock, solver
from packer_cli.plan.packing.ilp.classes import make_classes
from packer_cli.plan.packing.ilp.columns import generate, start_patterns
from packer_cli.plan.packing.ilp.knapsack import best_patterns, patterns_from
from packer_cli.plan.packing.ilp.knots import most_worth, packs_with
from packer_cli.plan.packing.ilp.slack import min_bin_slack
from packer_cli.plan.packing.ilp.stages import pack_near
from packer_cli.plan.random import rng_state
from tests import naive


def array(lengths):
    return np.array(lengths, dtype=np.int32)


def triples(num_packs, capacity, seed):
    """Falkenauer's triplets: every pack of an optimal packing holds three samples and is full."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while len(lengths) < 3 * num_packs:
        a = int(rng.integers(int(0.38 * capacity), int(0.49 * capacity)))
        b = int(rng.integers(capacity // 4, (capacity - a) // 2 + 1))
        if capacity // 4 <= capacity - a - b < capacity // 2:
            lengths += [a, b, capacity - a - b]
    return array(rng.permutation(lengths))


def cut_packs(num_packs, capacity, pieces, seed):
    """Full packs, cut at random: the optimum is known."""
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.choice(np.arange(1, capacity), pieces - 1, replace=False)) for _ in range(num_packs)]
    return array(rng.permutation(np.concatenate([np.diff([0, *cut, capacity]) for cut in cuts])))


def num_bfd(lengths, capacity):
    return len(bfd.pack(lengths, capacity, 0, PackingOptions())[0]) - 1


def solve(lengths, capacity, time_limit=20.0, max_lengths=300):
    """Every result is valid, lies between its bound and best-fit's packs, and says so."""
    result = solve_cutting_stock(lengths, capacity, time_limit, max_lengths)
    packs = naive.packs_of(result.offsets, result.order)
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    assert all(pack and sum(int(lengths[i]) for i in pack) <= capacity for pack in packs)
    assert packs_lower_bound(lengths, capacity) <= result.bound <= len(packs) <= num_bfd(lengths, capacity)
    assert result.num_packs == len(packs)
    assert result.is_optimal == (len(packs) == result.bound)
    return result


OPTIMA = {
    "triplets 60": (triples(20, 1000, 0), 1000, 20),
    "triplets 60, where dives fail": (triples(20, 1000, 2), 1000, 20),
    "triplets 120": (triples(40, 1000, 5), 1000, 40),
    "triplets of 128K": (triples(20, 131_072, 1), 131_072, 20),
    "cut in four": (cut_packs(20, 1000, 4, 2), 1000, 20),
    "cut in five": (cut_packs(12, 150, 5, 2), 150, 12),
    # 30 * (60+20+20, 50+30+20, 45+55) and 20 * (40+35+25): many packs of few lengths, the program's whole part.
    "many of few": (array([60, 20, 20, 50, 30, 20, 45, 55] * 30 + [40, 35, 25] * 20), 100, 110),
}


@pytest.mark.parametrize(("lengths", "capacity", "optimum"), OPTIMA.values(), ids=OPTIMA)
def test_known_optima_are_found_and_proved(lengths, capacity, optimum):
    result = solve(lengths, capacity, 120)
    assert result.num_packs == optimum
    assert result.is_optimal


@pytest.mark.parametrize("name", [name for name in OPTIMA if name != "many of few"])
def test_best_fit_does_not_find_these(name):
    """Against the assertions above passing vacuously."""
    lengths, capacity, optimum = OPTIMA[name]
    assert num_bfd(lengths, capacity) > optimum


@pytest.mark.parametrize("name", ["triplets 60", "triplets 60, where dives fail", "triplets 120", "cut in four"])
def test_minimum_slack_does_not_find_these(name):
    lengths, capacity, optimum = OPTIMA[name]
    counts = np.bincount(lengths, minlength=capacity + 1)
    assert len(min_bin_slack(counts, capacity, 10_000)[1]) - 1 > optimum


def test_a_gap_of_best_fit_is_closed():
    """Uniform lengths, as in Falkenauer's other family; the optimum is not built in, so the bound must prove it."""
    lengths = np.random.default_rng(0).integers(20, 101, 1000).astype(np.int32)
    result = solve(lengths, 150)
    assert result.is_optimal
    assert result.num_packs < num_bfd(lengths, 150)


def test_the_linear_program_proves_more_than_l2():
    """Samples of a third and a bit, two to a pack, which the sum does not see, nor L2 with its halves."""
    lengths = array([35] * 12)
    assert packs_lower_bound(lengths, 100) == 5
    assert lp_lower_bound(lengths, 100) == 6
    assert solve(lengths, 100).is_optimal


@given(capacity=st.integers(1, 40), data=st.data())
@settings(max_examples=150)
def test_bound_optimum_result(capacity, data):
    lengths = array(data.draw(st.lists(st.integers(1, capacity), max_size=10)))
    optimum = naive.fewest_packs(lengths.tolist(), capacity)
    result = solve(lengths, capacity)
    assert result.bound <= optimum <= result.num_packs
    # So small, nothing is left unproved.
    assert result.is_optimal
    assert packs_lower_bound(lengths, capacity) <= lp_lower_bound(lengths, capacity) <= optimum


@given(capacity=st.integers(20, 60), data=st.data(), max_lengths=st.integers(1, 4))
def test_rounded_lengths_give_valid_bounds_and_packs(capacity, data, max_lengths):
    lengths = array(data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=10)))
    optimum = naive.fewest_packs(lengths.tolist(), capacity)
    result = solve(lengths, capacity, max_lengths=max_lengths)
    assert result.bound <= optimum <= result.num_packs
    assert lp_lower_bound(lengths, capacity, 10, max_lengths) <= optimum


def test_stones_are_told_from_sand_and_counted_in_grains():
    lengths = np.random.default_rng(0).integers(1, 131_073, 5000).astype(np.int32)
    assert make_classes(lengths, 131_072, 300) is None
    classes = make_classes(lengths, 131_072, 5000)
    assert classes.counts.sum() == 5000
    assert not classes.is_exact
    grain = 131_072 // classes.capacity
    assert (classes.values >= classes.down * grain).all()
    assert (classes.values <= classes.up * grain).all()
    few = np.append(np.arange(1, 8193), [50_000, 60_000]).astype(np.int32)
    assert make_classes(few, 131_072, 300).values.tolist() == [60_000, 50_000]


MANY = {
    # Name: lengths from, to (of 131,072), packs above the bound, best-fit's at least.
    "two to a pack": (20_000, 100_000, 5, 8),
    "three to a pack": (30_000, 60_000, 3, 60),
    "four to a pack": (20_000, 50_000, 3, 20),
}


@pytest.mark.parametrize(("least", "most", "above", "best_fit_above"), MANY.values(), ids=MANY)
def test_thousands_of_lengths_come_near_a_bound_that_best_fit_is_far_from(least, most, above, best_fit_above):
    lengths = np.random.default_rng(1).integers(least, most, 3000).astype(np.int32)
    result = solve(lengths, 131_072, 120, max_lengths=60)
    assert result.num_packs <= result.bound + above
    assert num_bfd(lengths, 131_072) >= result.bound + best_fit_above
    assert result.bound >= lp_lower_bound(lengths, 131_072, 60, 60) - 1


@given(capacity=st.integers(5, 60), data=st.data())
def test_each_pack_is_filled_as_well_as_it_can_be(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=12))
    taken, offsets = min_bin_slack(np.bincount(np.array(lengths, dtype=int), minlength=capacity + 1), capacity, 10**6)
    left = sorted(lengths)
    for a, b in itertools.pairwise(offsets):
        pack = taken[a:b].tolist()
        longest, others = left[-1], left[:-1]
        fullest = max(
            sum(beside)
            for number in range(len(others) + 1)
            for beside in itertools.combinations(others, number)
            if sum(beside) <= capacity - longest
        )
        assert longest in pack
        assert sum(pack) == longest + fullest
        for length in pack:
            left.remove(length)
    assert left == []


def test_minimum_slack_closes_the_last_packs():
    """Short samples on a power of two: best-fit ends a little above the bound."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(300), 1, 10**6), 1, 4096).astype(np.int32)
    began = time.monotonic()
    result = solve(lengths, 4096, 60)
    assert time.monotonic() - began < 20
    assert result.is_optimal
    assert num_bfd(lengths, 4096) > result.bound


values = st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True)


@given(values=values, room=st.integers(30, 60), data=st.data())
def test_the_unbounded_knapsack_equals_brute_force(values, room, data):
    sizes = np.sort(np.array(values, dtype=np.int64))
    worth = np.array(data.draw(st.lists(st.integers(0, 20), min_size=len(sizes), max_size=len(sizes))), dtype=np.int64)
    best = [0] * (room + 1)
    for left in range(room + 1):
        best[left] = max([0, *(best[left - s] + w for s, w in zip(sizes, worth, strict=True) if s <= left)])
    most = most_worth(sizes, worth, room)
    assert most.tolist() == best
    firsts = np.flatnonzero(worth)
    packs = packs_with(sizes, worth, most, room, firsts, room // int(sizes[0]))
    for first, pack in zip(firsts, packs, strict=True):
        pack = pack[pack >= 0]
        assert first in pack
        assert sizes[pack].sum() <= room
        assert worth[pack].sum() == best[room - sizes[first]] + worth[first]


@given(
    lengths=st.lists(st.integers(5, 40), min_size=3, max_size=60),
    patterns=st.lists(st.lists(st.integers(5, 20), min_size=1, max_size=4), min_size=1, max_size=4),
    reach=st.integers(0, 6),
    tolerance=st.integers(0, 5),
)
def test_packs_near_a_pattern_are_near_it(lengths, patterns, reach, tolerance):
    capacity = 50
    patterns = [sorted(pattern, reverse=True) for pattern in patterns if sum(pattern) <= capacity]
    if not patterns:
        return
    counts = np.bincount(lengths, minlength=capacity + 1)
    left = counts.copy()
    words, starts = make_index(capacity + 1)
    for length in np.flatnonzero(counts):
        index_add(words, starts, length)
    flat = np.concatenate(patterns).astype(np.int64)
    reaches = np.minimum(reach, flat - 1)
    ends = np.cumsum([0] + [len(pattern) for pattern in patterns])
    use = np.full(len(patterns), 2, dtype=np.int64)
    taken, offsets = np.empty(len(lengths), dtype=np.int32), np.zeros(len(lengths) + 1, dtype=np.int64)
    num_packs = pack_near(
        capacity, ends, flat, reaches, use, 1, tolerance, left, words, starts, taken, offsets, 0, rng_state(0)
    )
    packs = [taken[a:b] for a, b in itertools.pairwise(offsets[: num_packs + 1])]
    assert num_packs == (2 - use).sum()
    assert (np.bincount(taken[: offsets[num_packs]], minlength=capacity + 1) + left == counts).all()
    assert all(index_ceiling(words, starts, x) == x for x in np.flatnonzero(left))
    assert all(index_floor(words, starts, x) < x for x in np.flatnonzero(left[1:] == 0) + 1)
    made = [pattern for pattern, times in zip(patterns, 2 - use, strict=True) for _ in range(times)]
    for pack, pattern in zip(packs, made, strict=True):
        assert len(pack) == len(pattern)
        assert pack.sum() <= capacity
        # A single sample leaves what it leaves.
        if len(pattern) > 1:
            assert pack.sum() >= sum(pattern) - tolerance
        assert (np.abs(pack - pattern) <= reach).all()


@pytest.mark.parametrize("capacity", [131_072, 2**18])
def test_long_samples_among_sand(capacity):
    rng = np.random.default_rng(3)
    long = rng.choice(rng.integers(capacity // 4, capacity // 2, 100), 400)
    lengths = np.concatenate([long, rng.integers(1, 2000, 1500)]).astype(np.int32)
    result = solve(lengths, capacity, time_limit=6)
    assert result.num_packs <= lp_lower_bound(lengths, capacity, 6) + 1
    assert result.num_packs < num_bfd(lengths, capacity)


@pytest.mark.parametrize("limit", [0.001, 0.1])
def test_a_time_limit_leaves_a_packing_and_a_bound(limit):
    lengths = np.random.default_rng(1).integers(20_000, 100_000, 20_000).astype(np.int32)
    solve(lengths[:100], 131_072, limit)  # compiles
    began = time.monotonic()
    result = solve(lengths, 131_072, limit)
    assert time.monotonic() - began < 5
    assert lp_lower_bound(lengths, 131_072, limit) <= result.num_packs


def test_an_unfinished_run_proves_a_bound():
    """Farley's: after one round, with the first patterns only, and no less than half of the optimum."""
    lengths = triples(40, 1000, 5)
    classes = make_classes(lengths, 1000, 300)
    start = start_patterns(classes.up, classes.counts, classes.capacity)
    stopped = generate(classes.up, classes.counts, classes.capacity, start, time.monotonic() + 0.01)
    if stopped is not None:  # A slow machine has no round in this time.
        assert stopped.bound <= 40
    full = generate(classes.up, classes.counts, classes.capacity, start, time.monotonic() + 10)
    assert full.bound == 40


def test_the_same_input_gives_the_same_packs():
    lengths = cut_packs(15, 1000, 4, 3)
    first, second = (ALGORITHM.pack(lengths, 1000, 7, IlpOptions()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


items = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=4)


@given(items=items, capacity=st.integers(1, 30), least=st.integers(1, 60))
def test_the_knapsack_equals_brute_force(items, capacity, least):
    sizes, values, limits = (np.array(column, dtype=np.int64) for column in zip(*items, strict=True))
    every = np.array(list(itertools.product(*(range(limit + 1) for limit in limits))))
    every = every[every @ sizes <= capacity]
    worth, patterns = best_patterns(sizes, values, limits, capacity)
    assert worth[0] == (every @ values).max()
    for k in range(len(worth)):
        if worth[k] >= 0:
            assert patterns[k] @ values == worth[k]
            assert patterns[k] @ sizes <= capacity
            assert (patterns[k] <= limits).all()
        if k and worth[k] >= 0:
            assert patterns[k][k - 1] >= 1
    found, is_complete = patterns_from(sizes, values, limits, capacity, least, 1000, 10**6)
    assert is_complete
    assert sorted(found.tolist()) == sorted(every[every @ values >= least].tolist())
    few, is_complete = patterns_from(sizes, values, limits, capacity, least, 1, 10**6)
    assert is_complete == (len(found) <= 1)
    assert len(few) == min(1, len(found))


def best_work(lengths, num_packs, capacity, linear):
    """Exact, by trying everything; None where nothing fits."""
    best = None
    for rows in itertools.product(range(num_packs), repeat=len(lengths)):
        tokens, work = [0] * num_packs, [0] * num_packs
        for length, row in zip(lengths, rows, strict=True):
            tokens[row] += length
            work[row] += length * (length + linear)
        if max(tokens) <= capacity and (best is None or max(work) < best):
            best = max(work)
    return best


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=7),
    num_packs=st.integers(1, 3),
    extra=st.integers(0, 40),
    unit=st.sampled_from([1, 3000]),
    linear=st.sampled_from([0, 30, 24_576]),
)
@settings(max_examples=50)
def test_least_greatest_work_equals_brute_force(lengths, num_packs, extra, unit, linear):
    lengths = [length * unit for length in lengths]
    capacity = max(*lengths, sum(lengths) // num_packs, 1) + extra * unit
    expected = best_work(lengths, num_packs, capacity, linear)
    if expected is None:
        with pytest.raises(ValueError, match=r"samples need at least .* packs of"):
            min_max_work(array(lengths), num_packs, capacity, linear=linear)
        return
    result = min_max_work(array(lengths), num_packs, capacity, linear=linear)
    rows = [np.flatnonzero(result.pack_of == j) for j in range(num_packs)]
    assert max(int(array(lengths)[row].sum()) for row in rows) <= capacity
    work = array(lengths).astype(np.int64) * (array(lengths) + linear)
    assert max(int(work[row].sum()) for row in rows) == result.best
    assert result.bound <= expected <= result.best
    assert result.is_optimal
    # A solver proves to a millionth of the longest sample's work.
    assert result.best - expected <= 4e-6 * work.max()


def test_least_greatest_work_of_no_samples():
    assert min_max_work(array([]), 3, 10)[1:] == (0, 0, True)


def test_a_window_has_an_answer_at_the_time_limit():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(3000), 1.2, 100), 1, 131_072).astype(np.int32)
    began = time.monotonic()
    result = min_max_work(lengths, 4, 200_000, 0.5)
    assert time.monotonic() - began < 5
    assert result.bound <= result.best <= 1.02 * result.bound
    assert np.bincount(result.pack_of, weights=lengths).max() <= 200_000


def test_min_max_needs_a_pack():
    with pytest.raises(ValueError, match="at least 1 pack, got 0"):
        min_max_work(array([3]), 0, 10)


@pytest.fixture
def no_highs(monkeypatch):
    monkeypatch.setattr(solver, "_has_highs", lambda: False)


def test_a_missing_solver_names_the_remedy(no_highs, monkeypatch):
    import pulp

    monkeypatch.setattr(pulp.COIN_CMD, "available", lambda self: False)
    with pytest.raises(ValueError) as error:
        solve(triples(5, 100, 7), 100)
    assert str(error.value) == (
        "packing 'ilp' found no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', "
        "or choose packing 'bfd', which needs none"
    )


def test_cbc_stands_in_for_highs(no_highs):
    try:
        solver.make_solver(1)
    except ValueError:
        pytest.skip("no CBC here")
    assert solve(triples(5, 100, 7), 100).is_optimal
    assert min_max_work(array([30, 30, 20, 20, 20]), 2, 100).best == 1700


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"time_limit": 0.0},
            "option 'time_limit' of packing 'ilp' must be over 0 and at most 1e6 seconds, got 0.0",
        ),
        (
            {"time_limit": float("nan")},
            "option 'time_limit' of packing 'ilp' must be over 0 and at most 1e6 seconds, got nan",
        ),
        ({"max_lengths": 0}, "option 'max_lengths' of packing 'ilp' must be in 1..2000, got 0"),
    ],
)
def test_bad_options_name_the_rule(options, message):
    with pytest.raises(ValueError) as error:
        IlpOptions(**options)
    assert str(error.value) == message
